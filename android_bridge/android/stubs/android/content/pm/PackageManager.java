package android.content.pm;

public abstract class PackageManager {
  public static final String FEATURE_STRONGBOX_KEYSTORE = "android.hardware.strongbox_keystore";
  public boolean hasSystemFeature(String featureName) { throw new RuntimeException("Stub!"); }
  public static final int PERMISSION_GRANTED = 0;
}
