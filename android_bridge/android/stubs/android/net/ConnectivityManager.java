package android.net;

public class ConnectivityManager {
  ConnectivityManager() {}
  public Network getActiveNetwork() { throw new RuntimeException("Stub!"); }
  public boolean isActiveNetworkMetered() { throw new RuntimeException("Stub!"); }
}
