package android.content.res;

public final class AssetManager {
  AssetManager() {}
  public java.io.InputStream open(String fileName) throws java.io.IOException { throw new RuntimeException("Stub!"); }
}
