package android.hardware;

public final class Sensor {
  public static final int TYPE_ACCELEROMETER = 1;
  public static final int TYPE_GYROSCOPE = 4;
  Sensor() {}
  public boolean isWakeUpSensor() { throw new RuntimeException("Stub!"); }
  public int getFifoMaxEventCount() { throw new RuntimeException("Stub!"); }
  public int getType() { throw new RuntimeException("Stub!"); }
  public static final int TYPE_MAGNETIC_FIELD = 2;
  public static final int TYPE_LIGHT = 5;
  public static final int TYPE_PRESSURE = 6;
  public static final int TYPE_GAME_ROTATION_VECTOR = 15;
  public static final int TYPE_HEART_RATE = 21;
}
