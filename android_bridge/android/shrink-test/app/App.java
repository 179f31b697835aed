package app;

import io.shoal.android.RecordedWindows;
import io.shoal.android.Shoal;
import io.shoal.android.ShoalSettings;
import io.shoal.android.WindowSpec;
import java.util.Arrays;

/** The least that an app does; R8 keeps what it needs, and what the consumer rules say. */
public class App {
  public static class Steps extends RecordedWindows {
    public Steps() {
      super(new WindowSpec(Arrays.asList("still", "walking")));
    }
  }

  public static void start(android.content.Context context, String trustedKeyPem) {
    Shoal.enrol(context, new ShoalSettings("mqtts://broker.example", "steps", Steps.class, null, trustedKeyPem));
  }
}
