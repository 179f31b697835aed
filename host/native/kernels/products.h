// Matrix products on packed matrices.
//
// A matrix of `depth` rows is packed in panels of at most PANEL columns: a panel holds its columns of every row one after the other, so
// that a product streams through it. A block of R rows by V vectors of the result stays in registers over the whole depth; R and V are
// chosen so that accumulators, one row of the panel and the broadcast factor fill the registers. Rows are divided evenly over blocks (64
// rows as eleven blocks of 6 or 5), because a last block of one or two rows would wait for the latency of its few accumulators.
#pragma once
#include "vectors.h"

namespace shoal {
namespace SHOAL_TARGET {
namespace {

template <int V>
constexpr int most_rows() {
  if (SHOAL_REGISTERS >= 32) return V == 4 ? 6 : V == 3 ? 8 : 12;
  return V == 2 ? 6 : 10;
}

// All loops over R and V are unrolled, those before and after the depth too: only then are the sums registers throughout, instead of an
// array in memory that is loaded before and stored after the inner loop.
//
// c[r] = bias + a[r] * b for R rows: a[r] has `depth` floats, b is (depth, V vectors).
template <int R, int V>
void multiply_block(const float* a, Index a_row, const float* b, Index depth, float* c, Index c_row, const float* bias) {
  Vec sum[R][V];
#pragma GCC unroll 16
  for (int r = 0; r < R; r++)
#pragma GCC unroll 4
    for (int v = 0; v < V; v++) sum[r][v] = bias ? load(bias + v * LANES) : Vec{};
  // One pointer per four rows: x86 reaches rows 0 to 3 of each by indexed addressing, and twelve pointers would not fit its registers.
  constexpr int GROUPS = (R + 3) / 4;
  const float* rows[GROUPS];
  for (int i = 0; i < GROUPS; i++) rows[i] = a + 4 * i * a_row;
  for (Index k = 0; k < depth; k++) {
    Vec col[V];
#pragma GCC unroll 4
    for (int v = 0; v < V; v++) col[v] = load(b + (k * V + v) * LANES);
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) {
      Vec x = broadcast(rows[r / 4][(r % 4) * a_row + k]);
#pragma GCC unroll 4
      for (int v = 0; v < V; v++) sum[r][v] += x * col[v];
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; r++)
#pragma GCC unroll 4
    for (int v = 0; v < V; v++) store(c + r * c_row + v * LANES, sum[r][v]);
}

// w[k] (+)= sum over rows m of a[m][k] * d[m], for R values of k: the gradient of R rows of a panel.
template <int R, int V>
void outer_block(const float* a, Index a_row, const float* d, Index d_row, Index rows, float* w, bool add) {
  Vec sum[R][V];
#pragma GCC unroll 16
  for (int r = 0; r < R; r++)
#pragma GCC unroll 4
    for (int v = 0; v < V; v++) sum[r][v] = add ? load(w + (r * V + v) * LANES) : Vec{};
  for (Index m = 0; m < rows; m++) {
    Vec dm[V];
#pragma GCC unroll 4
    for (int v = 0; v < V; v++) dm[v] = load(d + m * d_row + v * LANES);
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) {
      Vec x = broadcast(a[m * a_row + r]);
#pragma GCC unroll 4
      for (int v = 0; v < V; v++) sum[r][v] += x * dm[v];
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; r++)
#pragma GCC unroll 4
    for (int v = 0; v < V; v++) store(w + (r * V + v) * LANES, sum[r][v]);
}

template <int R, int V>
inline void multiply_rows(int n, const float* a, Index a_row, const float* b, Index depth, float* c, Index c_row, const float* bias) {
  if (n == R) multiply_block<R, V>(a, a_row, b, depth, c, c_row, bias);
  if constexpr (R > 1) {
    if (n < R) multiply_rows<R - 1, V>(n, a, a_row, b, depth, c, c_row, bias);
  }
}

template <int R, int V>
inline void outer_rows(int n, const float* a, Index a_row, const float* d, Index d_row, Index rows, float* w, bool add) {
  if (n == R) outer_block<R, V>(a, a_row, d, d_row, rows, w, add);
  if constexpr (R > 1) {
    if (n < R) outer_rows<R - 1, V>(n, a, a_row, d, d_row, rows, w, add);
  }
}

// Calls f(first, count) for blocks of at most `most` that divide `total` evenly.
template <class F>
inline void evenly(Index total, Index most, F f) {
  const Index blocks = (total + most - 1) / most;
  for (Index i = 0, first = 0; i < blocks; i++) {
    const Index count = total / blocks + (i < total % blocks);
    f(first, int(count));
    first += count;
  }
}

// c = bias + a * b for `rows` rows; b is packed, of `width` columns.
void multiply(const float* a, Index a_row, const float* b, Index depth, Index width, float* c, Index c_row, const float* bias, Index rows) {
  for_blocks(width, [&](auto vectors, Index col) {
    constexpr int V = decltype(vectors)::value;
    evenly(rows, most_rows<V>(), [&](Index m, int n) {
      const float* add = bias ? bias + col : nullptr;
      multiply_rows<most_rows<V>(), V>(n, a + m * a_row, a_row, b + col * depth, depth, c + m * c_row + col, c_row, add);
    });
  });
}

// The packed matrix w (+)= transposed(a) * d over `rows` rows.
void multiply_outer(const float* a, Index a_row, const float* d, Index d_row, Index rows, float* w, Index depth, Index width, bool add) {
  for_blocks(width, [&](auto vectors, Index col) {
    constexpr int V = decltype(vectors)::value;
    evenly(depth, most_rows<V>(), [&](Index k, int n) {
      outer_rows<most_rows<V>(), V>(n, a + k, a_row, d + col, d_row, rows, w + col * depth + k * V * LANES, add);
    });
  });
}

// A square of LANES by LANES.
struct Square {
  Vec row[LANES];
};

#if defined(__GNUC__) && !defined(__clang__)
// One round of a transposition: pairs of rows that are HALF apart exchange their off-diagonal halves.
template <int HALF>
inline void exchange(Vec* r) {
  IVec low, high;
  for (int i = 0; i < LANES; i++) {
    low[i] = (i & HALF) ? LANES + (i ^ HALF) : i;
    high[i] = (i & HALF) ? LANES + i : (i ^ HALF);
  }
#pragma GCC unroll 16
  for (int i = 0; i < LANES; i++) {
    if (i & HALF) continue;
    const Vec a = r[i], b = r[i + HALF];
    r[i] = __builtin_shuffle(a, b, low);
    r[i + HALF] = __builtin_shuffle(a, b, high);
  }
  if constexpr (HALF > 1) exchange<HALF / 2>(r);
}

inline void transpose(Square& s) { exchange<LANES / 2>(s.row); }
#else
inline void transpose(Square& s) {
  for (int i = 0; i < LANES; i++)
    for (int j = 0; j < i; j++) {
      const float x = s.row[i][j];
      s.row[i][j] = s.row[j][i];
      s.row[j][i] = x;
    }
}
#endif

// to[j][i] = from[i][j].
inline void transpose_square(const float* from, Index from_row, float* to, Index to_row) {
  Square s;
#pragma GCC unroll 16
  for (int i = 0; i < LANES; i++) s.row[i] = load(from + i * from_row);
  transpose(s);
#pragma GCC unroll 16
  for (int i = 0; i < LANES; i++) store(to + i * to_row, s.row[i]);
}

}  // namespace
}  // namespace SHOAL_TARGET
}  // namespace shoal
