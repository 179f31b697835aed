package android.app;

public class NotificationManager {
  public static final int IMPORTANCE_LOW = 2;
  NotificationManager() {}
  public void createNotificationChannel(NotificationChannel channel) { throw new RuntimeException("Stub!"); }
  public static final int IMPORTANCE_DEFAULT = 3;
  public static final int IMPORTANCE_NONE = 0;
  public boolean areNotificationsEnabled() { throw new RuntimeException("Stub!"); }
  public NotificationChannel getNotificationChannel(String channelId) { throw new RuntimeException("Stub!"); }
  public void notify(int id, Notification notification) { throw new RuntimeException("Stub!"); }
  public void cancel(int id) { throw new RuntimeException("Stub!"); }
}
