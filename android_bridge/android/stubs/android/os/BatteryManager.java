package android.os;

public class BatteryManager {
  public static final int BATTERY_PROPERTY_CAPACITY = 4;
  public static final String EXTRA_TEMPERATURE = "temperature";
  BatteryManager() {}
  public int getIntProperty(int id) { throw new RuntimeException("Stub!"); }
  public boolean isCharging() { throw new RuntimeException("Stub!"); }
}
