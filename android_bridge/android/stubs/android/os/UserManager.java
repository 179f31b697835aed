package android.os;

public class UserManager {
  UserManager() {}
  public boolean isUserUnlocked() { throw new RuntimeException("Stub!"); }
}
