// Vectors of LANES floats, in the compiler's own notation: the same source gives AVX-512, AVX2, NEON and SSE2.
#pragma once
#include <cmath>
#include <cstring>
#include "network.h"

#if !defined(SHOAL_TARGET) || !defined(SHOAL_LANES) || !defined(SHOAL_REGISTERS)
#error "the build defines SHOAL_TARGET (a name), SHOAL_LANES (floats of a vector) and SHOAL_REGISTERS (vector registers)"
#endif

namespace shoal {
namespace SHOAL_TARGET {
namespace {

constexpr int LANES = SHOAL_LANES;
constexpr int MAX_VECTORS = SHOAL_REGISTERS >= 32 ? 4 : 2;  // vectors of a panel
constexpr int PANEL = MAX_VECTORS * LANES;

typedef float Vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t IVec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

inline Vec load(const float* p) { return *reinterpret_cast<const Vec*>(p); }
inline void store(float* p, Vec a) { *reinterpret_cast<Vec*>(p) = a; }
// x - 0 is x; a compiler must not leave out 0 + x, since that turns -0 into 0.
inline Vec broadcast(float x) { return x - Vec{}; }

// e^x to within 2 roundings, by S. Moshier's polynomial (Cephes, expf.c); beyond the range of float32, its smallest and largest values.
inline Vec exponential(Vec x) {
  const Vec low = broadcast(-87.3f), high = broadcast(88.3f), magic = broadcast(12582912.0f);  // adding 1.5 * 2^23 rounds to an integer
  x = x < low ? low : x;
  x = x > high ? high : x;
  const Vec rounded = x * 1.44269504088896341f + magic, n = rounded - magic;
  const Vec r = x - n * 0.693359375f - n * -2.12194440e-4f;
  Vec p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const IVec power = ((IVec)rounded - (IVec)magic + 127) << 23;
  return p * (Vec)power;
}

inline Vec sigmoid(Vec x) { return 1.0f / (1.0f + exponential(-x)); }

// By the same author's tanhf.c: near 0 a polynomial, since 1 - 2 / (e^2x + 1) is mere rounding there.
inline Vec hyperbolic_tangent(Vec x) {
  const Vec size = x < 0 ? -x : x, z = x * x;
  Vec p = z * -5.70498872745e-3f + 2.06390887954e-2f;
  p = p * z - 5.37397155531e-2f;
  p = p * z + 1.33314422036e-1f;
  p = p * z - 3.33332819422e-1f;
  const Vec far = 1.0f - 2.0f / (exponential(size + size) + 1.0f);
  return size < 0.625f ? x + x * z * p : x < 0 ? -far : far;
}

// Value i of the result is value i ^ DISTANCE.
template <int DISTANCE>
inline Vec swap_values(Vec x) {
#if defined(__GNUC__) && !defined(__clang__)
  IVec at;
  for (int i = 0; i < LANES; i++) at[i] = i ^ DISTANCE;
  return __builtin_shuffle(x, at);
#else
  Vec y;
  for (int i = 0; i < LANES; i++) y[i] = x[i ^ DISTANCE];
  return y;
#endif
}

// A NaN is the largest.
template <int DISTANCE = LANES / 2>
inline float largest(Vec x) {
  const Vec y = swap_values<DISTANCE>(x), larger = (y > x) | (y != y) ? y : x;
  if constexpr (DISTANCE > 1) return largest<DISTANCE / 2>(larger);
  return larger[0];
}

template <int DISTANCE = LANES / 2>
inline float total(Vec x) {
  const Vec sum = x + swap_values<DISTANCE>(x);
  if constexpr (DISTANCE > 1) return total<DISTANCE / 2>(sum);
  return sum[0];
}

template <int N>
struct Int {
  static constexpr int value = N;
};

// Calls f(Int<vectors>, first channel) for the blocks of at most MAX_VECTORS vectors that `width` floats consist of.
template <class F>
inline void for_blocks(Index width, F f) {
  for (Index c = 0; c < width; c += PANEL) {
    switch (width - c >= PANEL ? MAX_VECTORS : (width - c) / LANES) {
      case 1: f(Int<1>{}, c); break;
      case 2: f(Int<2>{}, c); break;
#if SHOAL_REGISTERS >= 32
      case 3: f(Int<3>{}, c); break;
      case 4: f(Int<4>{}, c); break;
#endif
    }
  }
}

}  // namespace
}  // namespace SHOAL_TARGET
}  // namespace shoal
