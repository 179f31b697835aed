package android.os;

public final class PowerManager {
  PowerManager() {}
  public boolean isInteractive() { throw new RuntimeException("Stub!"); }
  public static final int PARTIAL_WAKE_LOCK = 1;
  public int getCurrentThermalStatus() { throw new RuntimeException("Stub!"); }
  public WakeLock newWakeLock(int levelAndFlags, String tag) { throw new RuntimeException("Stub!"); }
  public final class WakeLock {
    WakeLock() {}
    public void acquire(long timeout) { throw new RuntimeException("Stub!"); }
    public boolean isHeld() { throw new RuntimeException("Stub!"); }
    public void setReferenceCounted(boolean value) { throw new RuntimeException("Stub!"); }
    public void release() { throw new RuntimeException("Stub!"); }
  }
}
