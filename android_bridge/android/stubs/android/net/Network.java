package android.net;

public class Network {
  Network() {}
  public java.net.InetAddress[] getAllByName(String host) throws java.net.UnknownHostException { throw new RuntimeException("Stub!"); }
  public javax.net.SocketFactory getSocketFactory() { throw new RuntimeException("Stub!"); }
}
