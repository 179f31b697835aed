package android.app;

public class Notification {
  public static class Builder {
    public Builder(android.content.Context context, String channelId) { throw new RuntimeException("Stub!"); }
    public Builder setContentTitle(CharSequence title) { throw new RuntimeException("Stub!"); }
    public Builder setContentText(CharSequence text) { throw new RuntimeException("Stub!"); }
    public Builder setSmallIcon(int icon) { throw new RuntimeException("Stub!"); }
    public Builder setContentIntent(PendingIntent intent) { throw new RuntimeException("Stub!"); }
    public Builder setOngoing(boolean ongoing) { throw new RuntimeException("Stub!"); }
    public Builder setProgress(int max, int progress, boolean indeterminate) { throw new RuntimeException("Stub!"); }
    public Builder setOnlyAlertOnce(boolean onlyAlertOnce) { throw new RuntimeException("Stub!"); }
    public Builder setAutoCancel(boolean autoCancel) { throw new RuntimeException("Stub!"); }
    public Builder addAction(Action action) { throw new RuntimeException("Stub!"); }
    public Notification build() { throw new RuntimeException("Stub!"); }
  }
  public static class Action {
    Action() {}
    public static final class Builder {
      public Builder(android.graphics.drawable.Icon icon, CharSequence title, PendingIntent intent) { throw new RuntimeException("Stub!"); }
      public Action build() { throw new RuntimeException("Stub!"); }
    }
  }
}
