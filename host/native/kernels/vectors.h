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
// x - 0 is x; 0 + x would be an addition that no compiler may leave out, since it turns -0 into 0.
inline Vec broadcast(float x) { return x - Vec{}; }

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
