package androidx.work;

public final class Constraints {
  Constraints() {}
  public static final class Builder {
    public Builder() { throw new RuntimeException("Stub!"); }
    public Builder setRequiresCharging(boolean requiresCharging) { throw new RuntimeException("Stub!"); }
    public Builder setRequiresDeviceIdle(boolean requiresDeviceIdle) { throw new RuntimeException("Stub!"); }
    public Builder setRequiresBatteryNotLow(boolean requiresBatteryNotLow) { throw new RuntimeException("Stub!"); }
    public Builder setRequiresStorageNotLow(boolean requiresStorageNotLow) { throw new RuntimeException("Stub!"); }
    public Builder setRequiredNetworkType(NetworkType networkType) { throw new RuntimeException("Stub!"); }
    public Constraints build() { throw new RuntimeException("Stub!"); }
  }
}
