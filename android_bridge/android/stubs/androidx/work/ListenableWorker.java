package androidx.work;

public abstract class ListenableWorker {
  public ListenableWorker(android.content.Context appContext, WorkerParameters workerParams) { throw new RuntimeException("Stub!"); }
  public final android.content.Context getApplicationContext() { throw new RuntimeException("Stub!"); }
  public final Data getInputData() { throw new RuntimeException("Stub!"); }
  public final boolean isStopped() { throw new RuntimeException("Stub!"); }
  public final com.google.common.util.concurrent.ListenableFuture<Void> setForegroundAsync(ForegroundInfo foregroundInfo) { throw new RuntimeException("Stub!"); }
  public abstract static class Result {
    Result() {}
    public static Result success() { throw new RuntimeException("Stub!"); }
    public static Result retry() { throw new RuntimeException("Stub!"); }
    public static Result failure() { throw new RuntimeException("Stub!"); }
  }
  public final java.util.UUID getId() { throw new RuntimeException("Stub!"); }
  public final android.net.Network getNetwork() { throw new RuntimeException("Stub!"); }
}
