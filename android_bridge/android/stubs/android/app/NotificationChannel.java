package android.app;

public final class NotificationChannel {
  public NotificationChannel(String id, CharSequence name, int importance) { throw new RuntimeException("Stub!"); }
  public int getImportance() { throw new RuntimeException("Stub!"); }
  public void setDescription(String description) { throw new RuntimeException("Stub!"); }
}
