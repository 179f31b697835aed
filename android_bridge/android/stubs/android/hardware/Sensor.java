package android.hardware;

public final class Sensor {
  public static final int TYPE_ACCELEROMETER = 1;
  public static final int TYPE_GYROSCOPE = 4;
  Sensor() {}
  public int getType() { throw new RuntimeException("Stub!"); }
}
