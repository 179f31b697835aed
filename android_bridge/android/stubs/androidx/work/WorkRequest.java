package androidx.work;

public abstract class WorkRequest {
  WorkRequest() {}
  public abstract static class Builder<B extends Builder<B, W>, W extends WorkRequest> {
    Builder() {}
    public final B setConstraints(Constraints constraints) { throw new RuntimeException("Stub!"); }
    public final B setBackoffCriteria(BackoffPolicy backoffPolicy, long backoffDelay, java.util.concurrent.TimeUnit timeUnit) { throw new RuntimeException("Stub!"); }
    public B setInitialDelay(long duration, java.util.concurrent.TimeUnit timeUnit) { throw new RuntimeException("Stub!"); }
    public final B setInputData(Data inputData) { throw new RuntimeException("Stub!"); }
    public final W build() { throw new RuntimeException("Stub!"); }
  }
}
