// The weighted sum of rows of an array, each value read once.
#pragma once
#include <algorithm>
#include "vectors.h"

namespace shoal {
namespace SHOAL_TARGET {
namespace {

constexpr Index STRIP = 4096;  // columns at a time: their sums stay in the cache
constexpr Index GROUP = 32;    // rows that are summed in float32 before the sum goes on in float64

// sum[c] += w[0] * row[0][c] + ..., R rows.
template <int R>
void add_rows(const float* const* rows, const float* weights, Index width, float* __restrict sum) {
  const float* row[R];
  float w[R];
  for (int i = 0; i < R; i++) row[i] = rows[i], w[i] = weights[i];
  Index c = 0;
  for (; c + LANES <= width; c += LANES) {
    Vec s = load(sum + c);
#pragma GCC unroll 8
    for (int i = 0; i < R; i++) s += load(row[i] + c) * w[i];
    store(sum + c, s);
  }
  for (; c < width; c++)
    for (int i = 0; i < R; i++) sum[c] += row[i][c] * w[i];
}

// total[c] += sum over i of weights[i] * rows[i][c], for c below `width`.
void weighted_sum(const float* const* rows, const float* weights, Index count, Index width, double* __restrict total) {
  alignas(64) float sum[STRIP];
  for (Index begin = 0; begin < width; begin += STRIP) {
    const Index size = std::min(STRIP, width - begin);
    for (Index first = 0; first < count; first += GROUP) {
      const Index last = std::min(first + GROUP, count);
      std::fill(sum, sum + size, 0.0f);
      for (Index i = first; i < last;) {
        const float* at[8];
        const Index remaining = last - i;
        for (Index k = 0; k < std::min(remaining, Index(8)); k++) at[k] = rows[i + k] + begin;
        if (remaining >= 8)
          add_rows<8>(at, weights + i, size, sum), i += 8;
        else
          add_rows<1>(at, weights + i, size, sum), i += 1;
      }
      for (Index c = 0; c < size; c++) total[begin + c] += double(sum[c]);
    }
  }
}

}  // namespace
}  // namespace SHOAL_TARGET
}  // namespace shoal
