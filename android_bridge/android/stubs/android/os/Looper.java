package android.os;

public final class Looper {
  Looper() {}
}
