package com.facebook.soloader.nativeloader;

/** Loads the host library, whose path is the system property {@code io.shoal.host.library}, in the place of Android's. */
public final class SystemDelegate implements NativeLoaderDelegate {
  @Override
  public boolean loadLibrary(String name, int flags) {
    String path = System.getProperty("io.shoal.host.library");
    if (path == null) {
      throw new UnsatisfiedLinkError("library " + name + ": the system property io.shoal.host.library does not say where it is");
    }
    System.load(path);
    return true;
  }
}
