package android.app;

public class Activity extends android.content.ContextWrapper {
  public Activity() { super(null); }
  protected void onCreate(android.os.Bundle savedInstanceState) { throw new RuntimeException("Stub!"); }
  protected void onResume() { throw new RuntimeException("Stub!"); }
  protected void onStop() { throw new RuntimeException("Stub!"); }
  public void setContentView(android.view.View view) { throw new RuntimeException("Stub!"); }
  protected void onStart() { throw new RuntimeException("Stub!"); }
  public void setContentView(int layoutResID) { throw new RuntimeException("Stub!"); }
  public <T extends android.view.View> T findViewById(int id) { throw new RuntimeException("Stub!"); }
  public final void requestPermissions(String[] permissions, int requestCode) { throw new RuntimeException("Stub!"); }
  public final void runOnUiThread(Runnable action) { throw new RuntimeException("Stub!"); }
}
