package android.content.pm;

public class ApplicationInfo {
  public ApplicationInfo() { throw new RuntimeException("Stub!"); }
  public int targetSdkVersion;
}
