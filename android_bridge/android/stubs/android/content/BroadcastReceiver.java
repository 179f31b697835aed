package android.content;

public abstract class BroadcastReceiver {
  public BroadcastReceiver() { throw new RuntimeException("Stub!"); }
}
