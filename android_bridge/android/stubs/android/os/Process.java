package android.os;

public class Process {
  public static final int THREAD_PRIORITY_BACKGROUND = 10;
  public Process() { throw new RuntimeException("Stub!"); }
  public static final int myTid() { throw new RuntimeException("Stub!"); }
  public static final int getThreadPriority(int tid) { throw new RuntimeException("Stub!"); }
  public static final void setThreadPriority(int priority) { throw new RuntimeException("Stub!"); }
}
