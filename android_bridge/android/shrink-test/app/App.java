package app;

import io.shoal.android.Fleet;
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
    fleet.getConsent().grant("terms-1");
  }

  static void started(boolean training) {}
}
