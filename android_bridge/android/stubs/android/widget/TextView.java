package android.widget;

public class TextView extends android.view.View {
  public TextView(android.content.Context context) { super(context); }
  public final void setText(CharSequence text) { throw new RuntimeException("Stub!"); }
  public final void setText(int resid) { throw new RuntimeException("Stub!"); }
}
