package android.graphics.drawable;

public final class Icon {
  Icon() {}
  public static Icon createWithResource(android.content.Context context, int resId) { throw new RuntimeException("Stub!"); }
}
