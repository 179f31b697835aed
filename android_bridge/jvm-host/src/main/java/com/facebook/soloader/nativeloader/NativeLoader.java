package com.facebook.soloader.nativeloader;

/** Where ExecuTorch's classes load their native library. */
public final class NativeLoader {
  private static NativeLoaderDelegate delegate;

  private NativeLoader() {}

  public static boolean isInitialized() {
    return delegate != null;
  }

  public static void init(NativeLoaderDelegate loader) {
    delegate = loader;
  }

  public static boolean loadLibrary(String name) {
    return delegate.loadLibrary(name, 0);
  }
}
