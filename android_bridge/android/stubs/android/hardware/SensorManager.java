package android.hardware;

public abstract class SensorManager {
  public Sensor getDefaultSensor(int type, boolean wakeUp) { throw new RuntimeException("Stub!"); }
  public Sensor getDefaultSensor(int type) { throw new RuntimeException("Stub!"); }
  public boolean registerListener(SensorEventListener listener, Sensor sensor, int samplingPeriodUs, int maxReportLatencyUs, android.os.Handler handler) { throw new RuntimeException("Stub!"); }
  public void unregisterListener(SensorEventListener listener) { throw new RuntimeException("Stub!"); }
  public boolean flush(SensorEventListener listener) { throw new RuntimeException("Stub!"); }
}
