package android.hardware;

public class SensorEvent {
  public Sensor sensor;
  public long timestamp;
  public final float[] values = null;
  SensorEvent() {}
}
