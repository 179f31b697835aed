package android.app;

public final class PendingIntent {
  public static final int FLAG_IMMUTABLE = 67108864;
  public static final int FLAG_UPDATE_CURRENT = 134217728;
  PendingIntent() {}
  public static PendingIntent getActivity(android.content.Context context, int requestCode, android.content.Intent intent, int flags) { throw new RuntimeException("Stub!"); }
  public static PendingIntent getService(android.content.Context context, int requestCode, android.content.Intent intent, int flags) { throw new RuntimeException("Stub!"); }
  public static PendingIntent getBroadcast(android.content.Context context, int requestCode, android.content.Intent intent, int flags) { throw new RuntimeException("Stub!"); }
}
