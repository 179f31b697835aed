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
// c[r] = from[r] + a[r] * b for R rows: a[r] has `runs.count` runs of `runs.length` floats, b is (depth, V vectors); `from` is null for zeros.
template <int R, int V>
void multiply_block(const float* a, Index a_row, const Runs& runs, const float* b, float* c, Index c_row, const float* from, Index from_row) {
  Vec sum[R][V];
#pragma GCC unroll 16
  for (int r = 0; r < R; r++)
#pragma GCC unroll 4
    for (int v = 0; v < V; v++) sum[r][v] = from ? load(from + r * from_row + v * LANES) : Vec{};
  // One pointer per four rows: x86 reaches rows 0 to 3 of each by indexed addressing, and twelve pointers would not fit its registers.
  constexpr int GROUPS = (R + 3) / 4;
  for (Index s = 0; s < runs.count; s++) {
    const float* rows[GROUPS];
    for (int i = 0; i < GROUPS; i++) rows[i] = a + runs.offsets[s] + 4 * i * a_row;
    for (Index k = 0; k < runs.length; k++, b += V * LANES) {
      Vec col[V];
#pragma GCC unroll 4
      for (int v = 0; v < V; v++) col[v] = load(b + v * LANES);
#pragma GCC unroll 16
      for (int r = 0; r < R; r++) {
        Vec x = broadcast(rows[r / 4][(r % 4) * a_row + k]);
#pragma GCC unroll 4
        for (int v = 0; v < V; v++) sum[r][v] += x * col[v];
      }
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; r++)
#pragma GCC unroll 4
    for (int v = 0; v < V; v++) store(c + r * c_row + v * LANES, sum[r][v]);
}

// Rows that lie in lines: `lines` of them with `width` rows each.
struct Lines {
  Index lines, width;
};

// w[k] (+)= sum over rows m of a[m][k] * d[m], for R values of k: the gradient of R rows of a panel.
template <int R, int V>
void outer_block(const float* a, Index a_line, Index a_row, const float* d, Index d_line, Index d_row, Lines rows, float* w, bool add) {
  Vec sum[R][V];
#pragma GCC unroll 16
  for (int r = 0; r < R; r++)
#pragma GCC unroll 4
    for (int v = 0; v < V; v++) sum[r][v] = add ? load(w + (r * V + v) * LANES) : Vec{};
  for (Index l = 0; l < rows.lines; l++)
    for (Index m = 0; m < rows.width; m++) {
      const float *at = a + l * a_line + m * a_row, *dm = d + l * d_line + m * d_row;
      Vec col[V];
#pragma GCC unroll 4
      for (int v = 0; v < V; v++) col[v] = load(dm + v * LANES);
#pragma GCC unroll 16
      for (int r = 0; r < R; r++) {
        Vec x = broadcast(at[r]);
#pragma GCC unroll 4
        for (int v = 0; v < V; v++) sum[r][v] += x * col[v];
      }
    }
#pragma GCC unroll 16
  for (int r = 0; r < R; r++)
#pragma GCC unroll 4
    for (int v = 0; v < V; v++) store(w + (r * V + v) * LANES, sum[r][v]);
}

template <int R, int V>
inline void multiply_rows(int n, const float* a, Index a_row, const Runs& runs, const float* b, float* c, Index c_row, const float* from,
                          Index from_row) {
  if (n == R) multiply_block<R, V>(a, a_row, runs, b, c, c_row, from, from_row);
  if constexpr (R > 1) {
    if (n < R) multiply_rows<R - 1, V>(n, a, a_row, runs, b, c, c_row, from, from_row);
  }
}

template <int R, int V>
inline void outer_rows(int n, const float* a, Index a_line, Index a_row, const float* d, Index d_line, Index d_row, Lines rows, float* w,
                       bool add) {
  if (n == R) outer_block<R, V>(a, a_line, a_row, d, d_line, d_row, rows, w, add);
  if constexpr (R > 1) {
    if (n < R) outer_rows<R - 1, V>(n, a, a_line, a_row, d, d_line, d_row, rows, w, add);
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

// c = from + a * b for `rows` rows; b is packed, of `width` columns. `from` is null for zeros; a `from_row` of 0 adds the same to every row.
void multiply(const float* a, Index a_row, const Runs& runs, const float* b, Index width, float* c, Index c_row, const float* from,
              Index from_row, Index rows) {
  for_blocks(width, [&](auto vectors, Index col) {
    constexpr int V = decltype(vectors)::value;
    evenly(rows, most_rows<V>(), [&](Index m, int n) {
      const float* add = from ? from + m * from_row + col : nullptr;
      const float* panel = b + col * runs.count * runs.length;
      multiply_rows<most_rows<V>(), V>(n, a + m * a_row, a_row, runs, panel, c + m * c_row + col, c_row, add, from_row);
    });
  });
}

// The packed matrix w (+)= transposed(a) * d over rows in lines.
void multiply_outer(const float* a, Index a_line, Index a_row, const Runs& runs, const float* d, Index d_line, Index d_row, Lines rows,
                    float* w, Index width, bool add) {
  for_blocks(width, [&](auto vectors, Index col) {
    constexpr int V = decltype(vectors)::value;
    float* panel = w + col * runs.count * runs.length;
    for (Index s = 0; s < runs.count; s++)
      evenly(runs.length, most_rows<V>(), [&](Index k, int n) {
        outer_rows<most_rows<V>(), V>(n, a + runs.offsets[s] + k, a_line, a_row, d + col, d_line, d_row, rows,
                                      panel + (s * runs.length + k) * V * LANES, add);
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
