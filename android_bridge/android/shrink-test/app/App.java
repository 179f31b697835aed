package app;

import io.shoal.android.Fleet;
import io.shoal.android.FleetConfiguration;
import io.shoal.android.FleetState;
import io.shoal.android.RecordedWindows;
import io.shoal.android.Shoal;
import io.shoal.android.WindowSpec;
import io.shoal.core.ConfigException;
import java.util.Arrays;

/** The least that an app does; R8 keeps what it needs, and what the consumer rules say. */
public class App {
  public static class Steps extends RecordedWindows {
    public Steps() {
      super(new WindowSpec(Arrays.asList("still", "walking")));
    }
  }

  public static void start(android.content.Context context, String trustedKeyPem) throws ConfigException {
    Fleet fleet = Shoal.fleet(context, "steps", it -> it.broker("mqtts://broker.example").trust(trustedKeyPem).windows(Steps.class));
    fleet.addListener(state -> started(state instanceof FleetState.Training), Runnable::run);
    fleet.addModelListener(model -> started(model.getPackaged()), Runnable::run);
    fleet.addRoundListener(round -> started(round.getTrained() != null), Runnable::run);
    fleet.getConsent().grant("terms-1");
  }

  public static boolean enrol(android.content.Context context, String token, String trustedKeyPem) throws ConfigException {
    FleetConfiguration settings =
        it -> {
          it.enrol("https://shoal.example:8443", token).trust(trustedKeyPem).windows(Steps.class).model("steps.shoal");
          it.policy(rules -> rules.verbs("train", "evaluate").maxClipNorm(1.0).minNoiseMultiplier(0.5));
        };
    FleetState state = Shoal.fleet(context, "enrolled", settings).getState();
    return state instanceof FleetState.Blocked && ((FleetState.Blocked) state).getReason() == FleetState.Blocked.Reason.TOKEN_EXPIRED;
  }

  static void started(boolean training) {}
}
