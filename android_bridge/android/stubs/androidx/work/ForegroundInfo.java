package androidx.work;

public final class ForegroundInfo {
  public ForegroundInfo(int notificationId, android.app.Notification notification) { throw new RuntimeException("Stub!"); }
  public ForegroundInfo(int notificationId, android.app.Notification notification, int foregroundServiceType) { throw new RuntimeException("Stub!"); }
}
