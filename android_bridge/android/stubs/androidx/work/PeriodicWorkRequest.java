package androidx.work;

public final class PeriodicWorkRequest extends WorkRequest {
  PeriodicWorkRequest() {}
  public static final class Builder extends WorkRequest.Builder<Builder, PeriodicWorkRequest> {
    public Builder(Class<? extends ListenableWorker> workerClass, long repeatInterval, java.util.concurrent.TimeUnit repeatIntervalTimeUnit) { throw new RuntimeException("Stub!"); }
  }
}
