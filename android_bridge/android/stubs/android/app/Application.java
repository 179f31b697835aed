package android.app;

public class Application extends android.content.ContextWrapper {
  public Application() { super(null); }
  public void onCreate() { throw new RuntimeException("Stub!"); }
}
