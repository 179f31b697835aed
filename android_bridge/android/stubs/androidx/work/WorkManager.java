package androidx.work;

public abstract class WorkManager {
  WorkManager() {}
  public static WorkManager getInstance(android.content.Context context) { throw new RuntimeException("Stub!"); }
  public abstract Operation enqueueUniquePeriodicWork(String uniqueWorkName, ExistingPeriodicWorkPolicy policy, PeriodicWorkRequest request);
  public Operation enqueueUniqueWork(String uniqueWorkName, ExistingWorkPolicy policy, OneTimeWorkRequest request) { throw new RuntimeException("Stub!"); }
  public abstract Operation cancelUniqueWork(String uniqueWorkName);
  public abstract android.app.PendingIntent createCancelPendingIntent(java.util.UUID id);
}
