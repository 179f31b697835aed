package android.os;

public final class PowerManager {
  PowerManager() {}
  public boolean isInteractive() { throw new RuntimeException("Stub!"); }
}
