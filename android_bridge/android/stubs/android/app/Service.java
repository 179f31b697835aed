package android.app;

public abstract class Service extends android.content.ContextWrapper {
  public static final int START_NOT_STICKY = 2;
  public Service() { super(null); }
  public abstract android.os.IBinder onBind(android.content.Intent intent);
  public int onStartCommand(android.content.Intent intent, int flags, int startId) { throw new RuntimeException("Stub!"); }
  public void onDestroy() { throw new RuntimeException("Stub!"); }
  public final void stopSelf(int id) { throw new RuntimeException("Stub!"); }
  public final void startForeground(int id, Notification notification) { throw new RuntimeException("Stub!"); }
  public final void startForeground(int id, Notification notification, int foregroundServiceType) { throw new RuntimeException("Stub!"); }
}
