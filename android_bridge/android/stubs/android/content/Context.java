package android.content;

public abstract class Context {
  public static final String ACTIVITY_SERVICE = "activity";
  public static final String BATTERY_SERVICE = "batterymanager";
  public static final String CONNECTIVITY_SERVICE = "connectivity";
  public static final String NOTIFICATION_SERVICE = "notification";
  public static final String POWER_SERVICE = "power";
  public static final String SENSOR_SERVICE = "sensor";
  public static final String USER_SERVICE = "user";
  public Context() { throw new RuntimeException("Stub!"); }
  public Context getApplicationContext() { throw new RuntimeException("Stub!"); }
  public java.io.File getNoBackupFilesDir() { throw new RuntimeException("Stub!"); }
  public android.content.pm.ApplicationInfo getApplicationInfo() { throw new RuntimeException("Stub!"); }
  public String getPackageName() { throw new RuntimeException("Stub!"); }
  public android.content.pm.PackageManager getPackageManager() { throw new RuntimeException("Stub!"); }
  public android.content.res.AssetManager getAssets() { throw new RuntimeException("Stub!"); }
  public final String getString(int resId) { throw new RuntimeException("Stub!"); }
  public Intent registerReceiver(BroadcastReceiver receiver, IntentFilter filter) { throw new RuntimeException("Stub!"); }
  public Object getSystemService(String name) { throw new RuntimeException("Stub!"); }
  public final String getString(int resId, Object... formatArgs) { throw new RuntimeException("Stub!"); }
  public int checkSelfPermission(String permission) { throw new RuntimeException("Stub!"); }
  public android.content.ComponentName startService(Intent service) { throw new RuntimeException("Stub!"); }
  public android.content.ComponentName startForegroundService(Intent service) { throw new RuntimeException("Stub!"); }
  public boolean stopService(Intent service) { throw new RuntimeException("Stub!"); }
}
