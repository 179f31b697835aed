package android.os;

public final class SystemClock {
  SystemClock() {}
  public static long elapsedRealtimeNanos() { throw new RuntimeException("Stub!"); }
  public static long elapsedRealtime() { throw new RuntimeException("Stub!"); }
}
