package android.content.res;

public final class AssetManager {
  AssetManager() {}
  public String[] list(String path) throws java.io.IOException { throw new RuntimeException("Stub!"); }
  public java.io.InputStream open(String fileName) throws java.io.IOException { throw new RuntimeException("Stub!"); }
}
