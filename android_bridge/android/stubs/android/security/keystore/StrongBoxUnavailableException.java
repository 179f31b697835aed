package android.security.keystore;

public class StrongBoxUnavailableException extends java.security.ProviderException {
  public StrongBoxUnavailableException() { throw new RuntimeException("Stub!"); }
}
