package com.facebook.jni;

/** A native object of the host library, in the place of fbjni's class of this name. */
public class HybridData {
  public long handle;

  public HybridData() {}

  public HybridData(long handle) {
    this.handle = handle;
  }

  public boolean isValid() {
    return handle != 0;
  }

  public void resetNative() {
    if (handle != 0) {
      free(handle);
      handle = 0;
    }
  }

  private static native void free(long handle);
}
