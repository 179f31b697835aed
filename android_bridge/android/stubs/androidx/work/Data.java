package androidx.work;

public final class Data {
  Data() {}
  public int getInt(String key, int defaultValue) { throw new RuntimeException("Stub!"); }
  public String getString(String key) { throw new RuntimeException("Stub!"); }
  public static final class Builder {
    public Builder() { throw new RuntimeException("Stub!"); }
    public Builder putString(String key, String value) { throw new RuntimeException("Stub!"); }
    public Builder putInt(String key, int value) { throw new RuntimeException("Stub!"); }
    public Data build() { throw new RuntimeException("Stub!"); }
  }
}
