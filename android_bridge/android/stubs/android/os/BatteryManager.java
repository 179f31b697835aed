package android.os;

public class BatteryManager {
  public static final int BATTERY_PROPERTY_CAPACITY = 4;
  BatteryManager() {}
  public int getIntProperty(int id) { throw new RuntimeException("Stub!"); }
}
