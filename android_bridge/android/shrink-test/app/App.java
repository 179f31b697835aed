package app;

import io.shoal.android.Attestation;
import io.shoal.android.Fleet;
import io.shoal.android.FleetConfiguration;
import io.shoal.android.FleetState;
import io.shoal.android.Prediction;
import io.shoal.android.RecordedSensor;
import io.shoal.android.RecordedWindows;
import io.shoal.android.Shoal;
import io.shoal.android.WindowSpec;
import io.shoal.core.ConfigException;
import io.shoal.core.DataException;
import io.shoal.core.RecordingFiles;
import io.shoal.core.Recordings;
import io.shoal.core.ShoalException;
import io.shoal.core.Tensor;
import io.shoal.core.Windows;
import java.util.Arrays;

/** The least that an app does; R8 keeps what it needs, and what the consumer rules say. */
public class App {
  public static class Steps extends RecordedWindows {
    public Steps() {
      super(new WindowSpec(Arrays.asList("still", "walking"), 128, 64, 50.0, Arrays.asList(RecordedSensor.ACCELEROMETER), true, 32));
    }
  }

  /** What Play Integrity would say. */
  public static class Integrity implements Attestation {
    @Override
    public String attest(android.content.Context context, String nonce) {
      return "word of " + nonce;
    }
  }

  public static void start(android.content.Context context, String trustedKeyPem) throws ConfigException {
    Fleet fleet = Shoal.fleet(context, "steps", it -> it.broker("mqtts://broker.example").trust(trustedKeyPem).windows(Steps.class));
    fleet.addListener(state -> started(state instanceof FleetState.Training), Runnable::run);
    fleet.addModelListener(model -> started(model.isPackaged()), Runnable::run);
    fleet.addRoundListener(round -> started(round.getTrained() != null), Runnable::run);
    fleet.getConsent().grant("terms-1");
  }

  public static boolean enrol(android.content.Context context, String token, String trustedKeyPem) throws ConfigException {
    FleetConfiguration settings =
        it -> {
          it.enrol("https://shoal.example:8443", token).trust(trustedKeyPem).windows(Steps.class).model("steps.shoal");
          it.attestation(Integrity.class);
          it.policy(rules -> rules.verbs("train", "evaluate").maxClipNorm(1.0).minNoiseMultiplier(0.5));
        };
    FleetState state = Shoal.fleet(context, "enrolled", settings).getState();
    return state instanceof FleetState.Blocked && ((FleetState.Blocked) state).getReason() == FleetState.Blocked.Reason.TOKEN_EXPIRED;
  }

  public static Windows own(java.io.File folder) throws DataException {
    Windows cut = Recordings.windowsOf(RecordingFiles.readRecordings(folder), 128, 64);
    Tensor more = Tensor.of(new float[6 * 128], Arrays.asList(1, 6, 128));
    return new Windows(cut.getTrainX(), cut.getTrainY(), cut.getTestX(), cut.getTestY(), more);
  }

  public static String answer(Fleet fleet, Tensor window) throws ShoalException {
    Prediction answer = fleet.predict(window);
    return answer instanceof Prediction.Classes ? ((Prediction.Classes) answer).best(0) : answer.toString();
  }

  static void started(boolean training) {}
}
