package androidx.work;

public final class OneTimeWorkRequest extends WorkRequest {
  OneTimeWorkRequest() {}
  public static final class Builder extends WorkRequest.Builder<Builder, OneTimeWorkRequest> {
    public Builder(Class<? extends ListenableWorker> workerClass) { throw new RuntimeException("Stub!"); }
  }
}
