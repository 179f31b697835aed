// Peak of a core: independent products and sums of values in registers.
typedef float Vec __attribute__((vector_size(4 * SHOAL_LANES)));

constexpr int SUMS = SHOAL_REGISTERS >= 32 ? 24 : 12;

// Returns the operations of one turn.
extern "C" long shoal_peak_operations() { return 2L * SUMS * SHOAL_LANES; }

// Returns a value that depends on every operation.
extern "C" float shoal_peak(long turns, float factor, float term) {
  const Vec x = factor - Vec{}, y = term - Vec{};
  Vec sum[SUMS];
  for (int i = 0; i < SUMS; i++) sum[i] = x + float(i);  // distinct values: the compiler would merge equal sums
  for (long t = 0; t < turns; t++)
#pragma GCC unroll 24
    for (int i = 0; i < SUMS; i++) sum[i] = sum[i] * x + y;
  float total = 0;
  for (int i = 0; i < SUMS; i++)
    for (int j = 0; j < SHOAL_LANES; j++) total += sum[i][j];
  return total;
}
