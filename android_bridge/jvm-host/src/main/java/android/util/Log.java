package android.util;

/** Android's log, to standard error: the only Android class that ExecuTorch's Java classes use. */
public final class Log {
  private Log() {}

  public static int e(String tag, String text) {
    System.err.println(tag + ": " + text);
    return 0;
  }

  public static int e(String tag, String text, Throwable cause) {
    return e(tag, text + ": " + cause);
  }

  public static int w(String tag, String text) {
    return e(tag, text);
  }

  public static int i(String tag, String text) {
    return e(tag, text);
  }

  public static int d(String tag, String text) {
    return 0;
  }
}
