package android.app;

public class NotificationManager {
  public static final int IMPORTANCE_LOW = 2;
  NotificationManager() {}
  public void createNotificationChannel(NotificationChannel channel) { throw new RuntimeException("Stub!"); }
  public static final int IMPORTANCE_DEFAULT = 3;
  public void notify(int id, Notification notification) { throw new RuntimeException("Stub!"); }
  public void cancel(int id) { throw new RuntimeException("Stub!"); }
}
