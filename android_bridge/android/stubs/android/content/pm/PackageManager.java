package android.content.pm;

public abstract class PackageManager {
  public static final String FEATURE_STRONGBOX_KEYSTORE = "android.hardware.strongbox_keystore";
  public boolean hasSystemFeature(String featureName) { throw new RuntimeException("Stub!"); }
  public static final int PERMISSION_GRANTED = 0;
  public static class NameNotFoundException extends Exception { public NameNotFoundException() { throw new RuntimeException("Stub!"); } }
  public android.content.Intent getLaunchIntentForPackage(String packageName) { throw new RuntimeException("Stub!"); }
  public PackageInfo getPackageInfo(String packageName, int flags) throws NameNotFoundException { throw new RuntimeException("Stub!"); }
}
