package com.facebook.soloader.nativeloader;

/** Loads a native library by name. */
public interface NativeLoaderDelegate {
  boolean loadLibrary(String name, int flags);
}
