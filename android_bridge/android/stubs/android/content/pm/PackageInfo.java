package android.content.pm;

public class PackageInfo {
  public PackageInfo() { throw new RuntimeException("Stub!"); }
  public String versionName;
}
