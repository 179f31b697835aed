package android.app;

public class ActivityManager {
  ActivityManager() { throw new RuntimeException("Stub!"); }
  public java.util.List<ApplicationExitInfo> getHistoricalProcessExitReasons(String packageName, int pid, int maxNum) { throw new RuntimeException("Stub!"); }
}
