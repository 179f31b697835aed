package android.app;

public final class ApplicationExitInfo {
  ApplicationExitInfo() { throw new RuntimeException("Stub!"); }
  public static final int REASON_LOW_MEMORY = 3;
  public static final int REASON_SIGNALED = 2;
  public int getReason() { throw new RuntimeException("Stub!"); }
  public int getStatus() { throw new RuntimeException("Stub!"); }
}
