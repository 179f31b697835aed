// Self-attention (A. Vaswani et al., NeurIPS 2017, section 3.2): of every head, o = softmax(q k^T * scale) v.
//
// A row of the input holds q, k and v, `part` floats each, and in each of them the heads side by side. The shares (softmax) of a head are
// computed anew in the backward pass: they are rows times rows, and reading them from memory would take as long.
#pragma once
#include "layers.h"

namespace shoal {
namespace SHOAL_TARGET {
namespace {

struct Heads {
  Index count, size;      // of heads, and of the values of one
  Index rows, part;
  Index columns, padded;  // rows and size, rounded up to whole vectors
  float scale;
};

// Offset of value c of row k in a packed matrix of `rows` rows and `width` columns.
inline Index packed_at(Index rows, Index width, Index k, Index c) {
  const Index panel = c / PANEL * PANEL;
  return panel * rows + k * (width - panel < PANEL ? width - panel : PANEL) + c - panel;
}

// The head's values of all rows, as a packed matrix of `rows` rows; or of `size` rows, transposed.
void pack_head(const Heads& heads, const float* from, Index row, float* to) {
  for (Index k = 0; k < heads.rows; k++)
    for (Index c = 0; c < heads.padded; c += LANES) {
      float* at = to + packed_at(heads.rows, heads.padded, k, c);
      const Index count = heads.size - c;
      if (count >= LANES) {
        store(at, load(from + k * row + c));
        continue;
      }
      for (Index i = 0; i < LANES; i++) at[i] = i < count ? from[k * row + c + i] : 0.0f;
    }
}

void pack_transposed_head(const Heads& heads, const float* from, Index row, float* to) {
  for (Index first = 0; first < heads.columns; first += LANES) {
    const Index col = first / PANEL * PANEL, width = heads.columns - col < PANEL ? heads.columns - col : PANEL, count = heads.rows - first;
    const float* rows = from + first * row;
    float* at = to + col * heads.size + first - col;
    const Index whole = count >= LANES ? heads.size / LANES * LANES : 0;
    for (Index c = 0; c < whole; c += LANES) transpose_square(rows + c, row, at + c * width, width);
    for (Index c = whole; c < heads.size; c++)
      for (Index i = 0; i < LANES; i++) at[c * width + i] = i < count ? rows[i * row + c] : 0.0f;
  }
}

// Turns one row of scores into shares; values beyond the last column become 0.
void softmax(float* s, Index count, Index columns, float scale) {
  for (Index i = count; i < columns; i++) s[i] = -INFINITY;
  Vec most = load(s);
  for (Index i = LANES; i < columns; i += LANES) {
    const Vec x = load(s + i);
    most = (x > most) | (x != x) ? x : most;
  }
  const Vec top = broadcast(largest(most));
  Vec sum = {};
  for (Index i = 0; i < columns; i += LANES) {
    const Vec e = exponential((load(s + i) - top) * scale);
    store(s + i, e);
    sum += e;
  }
  const Vec share = broadcast(1.0f / total(sum));
  for (Index i = 0; i < columns; i += LANES) store(s + i, load(s + i) * share);
  for (Index i = count; i < columns; i++) s[i] = 0;
}

// Replaces the gradient d by the shares p with the gradient by the scores.
void softmax_backward(const float* p, float* d, Index columns, float scale) {
  Vec sum = {};
  for (Index i = 0; i < columns; i += LANES) sum += load(p + i) * load(d + i);
  const Vec mean = broadcast(total(sum));
  for (Index i = 0; i < columns; i += LANES) store(d + i, load(p + i) * (load(d + i) - mean) * scale);
}

// Room for the matrices of a head, one after the other.
struct HeadRoom {
  float *packed, *product, *shares, *slopes;
  HeadRoom(const Heads& heads, float* at) {
    const Index narrow = heads.rows * heads.padded + heads.size * heads.columns, wide = heads.rows * heads.columns;
    packed = at, product = packed + narrow, shares = product + narrow, slopes = shares + wide;
  }
};

void shares_of(const Heads& heads, const float* q, Index row, const HeadRoom& room) {
  const Index zero = 0;
  pack_transposed_head(heads, q + heads.part, row, room.packed);
  multiply(q, row, {&zero, 1, heads.size}, room.packed, heads.columns, room.shares, heads.columns, nullptr, 0, heads.rows);
  for (Index t = 0; t < heads.rows; t++) softmax(room.shares + t * heads.columns, heads.rows, heads.columns, heads.scale);
}

// Random numbers in [0, 1) of an example's shares, heads by rows by rows, which decide the shares to drop; null for no dropout.
struct Dropped {
  const float* drawn;
  float share;
};

// Applies dropout: a value becomes 0 if its random number is below the share, and is otherwise scaled so that the mean stays.
inline void drop(const float* drawn, float share, const float* from, Index count, float* to) {
  const float factor = 1.0f / (1.0f - share);
  for (Index i = 0; i < count; i++) to[i] = from[i] * (drawn[i] >= share ? factor : 0.0f);
}

void drop_shares(const Heads& heads, const Dropped& dropped, Index head, const float* from, float* to) {
  for (Index t = 0; t < heads.rows; t++)
    drop(dropped.drawn + (head * heads.rows + t) * heads.rows, dropped.share, from + t * heads.columns, heads.rows, to + t * heads.columns);
}

// The rows of an example: x of the input, y of the result.
void attention_forward(const Heads& heads, const float* x, Index row, const Dropped& dropped, float* y, Index y_row, float* scratch) {
  const HeadRoom room(heads, scratch);
  const Index zero = 0;
  for (Index h = 0; h < heads.count; h++) {
    const float* q = x + h * heads.size;
    shares_of(heads, q, row, room);
    if (dropped.drawn) drop_shares(heads, dropped, h, room.shares, room.shares);
    pack_head(heads, q + 2 * heads.part, row, room.packed);
    multiply(room.shares, heads.columns, {&zero, 1, heads.rows}, room.packed, heads.padded, room.product, heads.padded, nullptr, 0, heads.rows);
    for (Index t = 0; t < heads.rows; t++) memcpy(y + t * y_row + h * heads.size, room.product + t * heads.padded, sizeof(float) * heads.size);
  }
}

// Writes the gradient by the input into d_x, from the gradient d by the result. A product of shares or of slopes with rows may read beyond
// a head's values; its results for these are not used.
void attention_backward(const Heads& heads, const float* x, Index row, const Dropped& dropped, const float* d, Index d_row, float* d_x,
                        Index d_x_row, float* scratch) {
  const HeadRoom room(heads, scratch);
  const Index zero = 0;
  const auto put = [&](Index part, Index h, bool packed) {
    for (Index t = 0; t < heads.rows; t++)
      for (Index c = 0; c < heads.size; c += LANES) {
        const float* from = room.product + (packed ? packed_at(heads.rows, heads.padded, t, c) : t * heads.padded + c);
        float* to = d_x + t * d_x_row + part * heads.part + h * heads.size + c;
        const Index count = heads.size - c;
        if (count >= LANES) {
          store(to, load(from));
          continue;
        }
        for (Index i = 0; i < count; i++) to[i] = from[i];
      }
  };
  const Lines rows = {1, heads.rows};
  for (Index h = 0; h < heads.count; h++) {
    const float *q = x + h * heads.size, *k = q + heads.part, *v = k + heads.part, *g = d + h * heads.size;
    shares_of(heads, q, row, room);
    const float* used = dropped.drawn ? room.slopes : room.shares;
    if (dropped.drawn) {
      memcpy(room.slopes, room.shares, sizeof(float) * heads.rows * heads.columns);
      drop_shares(heads, dropped, h, room.shares, room.slopes);
    }
    multiply_outer(used, 0, heads.columns, {&zero, 1, heads.rows}, g, 0, d_row, rows, room.product, heads.padded, false);
    put(2, h, true);
    pack_transposed_head(heads, v, row, room.packed);
    multiply(g, d_row, {&zero, 1, heads.size}, room.packed, heads.columns, room.slopes, heads.columns, nullptr, 0, heads.rows);
    if (dropped.drawn) drop_shares(heads, dropped, h, room.slopes, room.slopes);
    for (Index t = 0; t < heads.rows; t++)
      softmax_backward(room.shares + t * heads.columns, room.slopes + t * heads.columns, heads.columns, heads.scale);
    pack_head(heads, k, row, room.packed);
    multiply(room.slopes, heads.columns, {&zero, 1, heads.rows}, room.packed, heads.padded, room.product, heads.padded, nullptr, 0, heads.rows);
    put(0, h, false);
    multiply_outer(room.slopes, 0, heads.columns, {&zero, 1, heads.rows}, q, 0, row, rows, room.product, heads.padded, false);
    put(1, h, true);
  }
}

}  // namespace
}  // namespace SHOAL_TARGET
}  // namespace shoal
