package android.content;

public abstract class BroadcastReceiver {
  public BroadcastReceiver() { throw new RuntimeException("Stub!"); }
  public final PendingResult goAsync() { throw new RuntimeException("Stub!"); }
  public static class PendingResult {
    PendingResult() {}
    public final void finish() { throw new RuntimeException("Stub!"); }
  }
  public abstract void onReceive(Context context, Intent intent);
}
