package android.view;

public class View {
  public static final int VISIBLE = 0;
  public static final int GONE = 8;
  public View(android.content.Context context) { throw new RuntimeException("Stub!"); }
  public void setOnClickListener(OnClickListener l) { throw new RuntimeException("Stub!"); }
  public interface OnClickListener {
    void onClick(View v);
  }
  public void setVisibility(int visibility) { throw new RuntimeException("Stub!"); }
}
