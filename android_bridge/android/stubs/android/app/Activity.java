package android.app;

public class Activity extends android.content.Context {
  public Activity() { throw new RuntimeException("Stub!"); }
  protected void onCreate(android.os.Bundle savedInstanceState) { throw new RuntimeException("Stub!"); }
  protected void onResume() { throw new RuntimeException("Stub!"); }
  protected void onStop() { throw new RuntimeException("Stub!"); }
  public void setContentView(android.view.View view) { throw new RuntimeException("Stub!"); }
}
