package android.security.keystore;

public final class KeyGenParameterSpec implements java.security.spec.AlgorithmParameterSpec {
  KeyGenParameterSpec() {}
  public static final class Builder {
    public Builder(String keystoreAlias, int purposes) { throw new RuntimeException("Stub!"); }
    public Builder setAlgorithmParameterSpec(java.security.spec.AlgorithmParameterSpec spec) { throw new RuntimeException("Stub!"); }
    public Builder setDigests(String... digests) { throw new RuntimeException("Stub!"); }
    public Builder setIsStrongBoxBacked(boolean isStrongBoxBacked) { throw new RuntimeException("Stub!"); }
    public KeyGenParameterSpec build() { throw new RuntimeException("Stub!"); }
  }
}
