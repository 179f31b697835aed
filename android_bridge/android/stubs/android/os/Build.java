package android.os;

public class Build {
  public static final String MANUFACTURER = String.valueOf("");
  public static final String MODEL = String.valueOf("");
  public static class VERSION {
    public static final int SDK_INT = Integer.parseInt("0");
  }
}
