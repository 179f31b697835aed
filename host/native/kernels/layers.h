// Forward and backward passes of layers that are not matrix products. All of them run over blocks of channels, rows inside.
//
// BatchNorm, ReLU and MaxPool are one pass: y = max over the pool of (x * factor + shift), then max(y, floor), where floor is 0 for ReLU
// and -infinity without. ReLU and MaxPool commute, so both orders come here. Only x is stored for the backward pass; the row that won is
// determined again, by the same expression. As in torch the first of equal rows wins, a NaN wins over everything, and ReLU passes no gradient at 0.
#pragma once
#include "products.h"

namespace shoal {
namespace SHOAL_TARGET {
namespace {

inline float* rows_of(const View& view, Index capacity, float* workspace) {
  return workspace + view.fixed + view.per_sample * capacity + view.lead;
}

// Mean, and sum of squared differences from it, of every channel over `rows` rows.
//
// One pass with a shift, which is the mean of the example before (`guess`; its own first row for the first example). The cancellation
// in q - s * s / rows is at most rows * (guess - mean)^2, and the examples' means differ by no more than the spread over the whole batch
// that is measured here: the relative error stays at a few roundings for every mean.
void moments(const float* x, Index row, Index rows, Index width, const float* guess, float* mean, float* squares) {
  for_blocks(width, [&](auto vectors, Index c) {
    constexpr int V = decltype(vectors)::value;
    Vec shift[V], s[V] = {}, q[V] = {}, s2[V] = {}, q2[V] = {};
    for (int v = 0; v < V; v++) shift[v] = load((guess ? guess : x) + c + v * LANES);
    const float* p = x + c;
    Index r = 0;
    for (; r + 2 <= rows; r += 2, p += 2 * row)  // two sets of sums: an addition waits for the one before
      for (int v = 0; v < V; v++) {
        const Vec a = load(p + v * LANES) - shift[v], b = load(p + row + v * LANES) - shift[v];
        s[v] += a, q[v] += a * a, s2[v] += b, q2[v] += b * b;
      }
    if (r < rows)
      for (int v = 0; v < V; v++) {
        const Vec a = load(p + v * LANES) - shift[v];
        s[v] += a, q[v] += a * a;
      }
    for (int v = 0; v < V; v++) {
      const Vec sum = s[v] + s2[v], off = sum / float(rows), rest = q[v] + q2[v] - sum * off;
      store(mean + c + v * LANES, shift[v] + off);
      store(squares + c + v * LANES, rest < 0 ? Vec{} : rest);
    }
  });
}

// From the moments of `parts` parts of `rows` rows each: mean and 1 / standard deviation of all, and the running statistics.
void combine_moments(const float* means, const float* squares, Index parts, Index rows, Index width, float eps, float momentum, float* mean,
                     float* inverse, float* running_mean, float* running_var) {
  const float count = float(parts) * float(rows);
  for (Index c = 0; c < width; c += LANES) {
    Vec sum = {}, total = {}, off = {};
    const Vec first = load(means + c);
    for (Index i = 0; i < parts; i++) sum += load(means + i * width + c) - first;
    const Vec m = first + sum / float(parts);
    for (Index i = 0; i < parts; i++) {
      const Vec d = load(means + i * width + c) - m;
      total += load(squares + i * width + c);
      off += d * d;
    }
    total += off * float(rows);
    Vec scale = {};
    const Vec variance = total / count;
    for (int i = 0; i < LANES; i++) scale[i] = 1.0f / sqrtf(variance[i] + eps);
    store(mean + c, m);
    store(inverse + c, scale);
    if (running_mean) {
      store(running_mean + c, (1 - momentum) * load(running_mean + c) + momentum * m);
      store(running_var + c, (1 - momentum) * load(running_var + c) + momentum * (total / (count - 1)));
    }
  }
}

struct ActivationPass {
  Index samples, in_rows, in_width, out_rows, out_width, channels, pool_lines, pool;  // channels: floats of a row
  const float* x;      // rows dense
  Index x_sample;
  float* y;            // forward: the output; backward: the gradient of the input
  Index y_sample, y_line, y_row;
  const float* g;      // backward: gradient of the output, rows dense
  Index g_sample;
  const float *mean, *inverse, *gamma, *beta;  // null without BatchNorm
  float *d_gamma, *d_beta;
  float floor;
  bool move_inputs;    // backward: true if the gradient of the input is needed
  bool adds;           // backward: true if it is added to the existing values
};

// Row that wins among `lines` lines of `columns` rows from p on: its x, its y and its index.
template <int LINES, int COLUMNS>
inline void winner(const float* p, Index line, Index row, Index lines, Index columns, Vec factor, Vec shift, Vec& x, Vec& y, IVec& which) {
  const int last_line = LINES ? LINES : int(lines), last = COLUMNS ? COLUMNS : int(columns);
  x = load(p), y = x * factor + shift, which = IVec{};
  for (int i = 0; i < last_line; i++)
    for (int j = i ? 0 : 1; j < last; j++) {
      const Vec xj = load(p + i * line + j * row), yj = xj * factor + shift;
      const IVec better = (yj > y) | (yj != yj);
      x = better ? xj : x;
      y = better ? yj : y;
      which = better ? IVec{} + (i * last + j) : which;
    }
}

template <int LINES, int COLUMNS, int V>
void activation_forward(const ActivationPass& s, Index c) {
  Vec factor[V], shift[V];
  for (int v = 0; v < V; v++) {
    const Index at = c + v * LANES;
    factor[v] = s.mean ? load(s.gamma + at) * load(s.inverse + at) : broadcast(1);
    shift[v] = s.mean ? load(s.beta + at) - load(s.mean + at) * factor[v] : Vec{};
  }
  const Vec floor = broadcast(s.floor);
  const Index lines = LINES ? LINES : s.pool_lines, columns = COLUMNS ? COLUMNS : s.pool, line = s.in_width * s.channels;
  for (Index n = 0; n < s.samples; n++)
    for (Index m = 0; m < s.out_rows / s.out_width; m++) {
      const float* p = s.x + n * s.x_sample + m * lines * line + c;
      float* o = s.y + n * s.y_sample + m * s.y_line + c;
      for (Index l = 0; l < s.out_width; l++, p += columns * s.channels, o += s.y_row)
        for (int v = 0; v < V; v++) {
          Vec y = load(p + v * LANES) * factor[v] + shift[v];
          for (int i = 0; i < lines; i++)
            for (int j = i ? 0 : 1; j < columns; j++) {
              const Vec z = load(p + i * line + j * s.channels + v * LANES) * factor[v] + shift[v];
              y = (z > y) | (z != z) ? z : y;
            }
          store(o + v * LANES, floor > y ? floor : y);
        }
    }
}

// dx = gamma / sigma * (dy - mean(dy) - xhat * mean(dy * xhat)), S. Ioffe, C. Szegedy, ICML 2015, section 3; dy is 0 at rows that did
// not win.
template <int LINES, int COLUMNS, int V>
void activation_backward(const ActivationPass& s, Index c) {
  const Vec zero = {}, floor = broadcast(s.floor);
  const Index lines = LINES ? LINES : s.pool_lines, columns = COLUMNS ? COLUMNS : s.pool, line = s.in_width * s.channels;
  const Index out_lines = s.out_rows / s.out_width, in_lines = s.in_rows / s.in_width;
  Vec factor[V], shift[V], mean[V], level[V], slope[V];
  for (int v = 0; v < V; v++) {
    const Index at = c + v * LANES;
    factor[v] = s.mean ? load(s.gamma + at) * load(s.inverse + at) : broadcast(1);
    shift[v] = s.mean ? load(s.beta + at) - load(s.mean + at) * factor[v] : zero;
    mean[v] = s.mean ? load(s.mean + at) : zero;
    level[v] = slope[v] = zero;
  }
  if (s.mean) {
    Vec sum[V] = {}, product[V] = {};
    for (Index n = 0; n < s.samples; n++)
      for (Index m = 0; m < out_lines; m++) {
        const float *p = s.x + n * s.x_sample + m * lines * line + c, *q = s.g + n * s.g_sample + m * s.out_width * s.channels + c;
        for (Index l = 0; l < s.out_width; l++, p += columns * s.channels, q += s.channels)
          for (int v = 0; v < V; v++) {
            Vec x, y;
            IVec which;
            winner<LINES, COLUMNS>(p + v * LANES, line, s.channels, lines, columns, factor[v], shift[v], x, y, which);
            const Vec d = y <= floor ? zero : load(q + v * LANES);
            sum[v] += d;
            product[v] += d * (x - mean[v]);
          }
      }
    const float count = float(s.samples) * float(s.in_rows);
    for (int v = 0; v < V; v++) {
      const Index at = c + v * LANES;
      const Vec inverse = load(s.inverse + at);
      store(s.d_beta + at, sum[v]);
      store(s.d_gamma + at, product[v] * inverse);
      level[v] = factor[v] * sum[v] / count;
      slope[v] = factor[v] * inverse * inverse * product[v] / count;
    }
  }
  if (!s.move_inputs) return;
  const auto put = [&](float* to, Vec value) { store(to, s.adds ? load(to) + value : value); };
  // Rows `from` to `to` of a line, which no pool reaches.
  const auto left_over = [&](Index n, Index m, Index from) {
    const float* p = s.x + n * s.x_sample + m * line + c;
    float* o = s.y + n * s.y_sample + m * s.y_line + c;
    for (Index l = from; l < s.in_width; l++)
      for (int v = 0; v < V; v++)
        put(o + l * s.y_row + v * LANES, -level[v] - (load(p + l * s.channels + v * LANES) - mean[v]) * slope[v]);
  };
  for (Index n = 0; n < s.samples; n++) {
    for (Index m = 0; m < out_lines; m++) {
      const float *p = s.x + n * s.x_sample + m * lines * line + c, *q = s.g + n * s.g_sample + m * s.out_width * s.channels + c;
      float* o = s.y + n * s.y_sample + m * lines * s.y_line + c;
      for (Index l = 0; l < s.out_width; l++, p += columns * s.channels, q += s.channels, o += columns * s.y_row)
        for (int v = 0; v < V; v++) {
          Vec x, y;
          IVec which;
          winner<LINES, COLUMNS>(p + v * LANES, line, s.channels, lines, columns, factor[v], shift[v], x, y, which);
          const Vec d = factor[v] * (y <= floor ? zero : load(q + v * LANES)) - level[v];
          for (int i = 0; i < lines; i++)
            for (int j = 0; j < columns; j++) {
              const Vec xj = load(p + i * line + j * s.channels + v * LANES);
              const IVec wins = which == IVec{} + (i * int(columns) + j);
              put(o + i * s.y_line + j * s.y_row + v * LANES, (wins ? d : -level[v]) - (xj - mean[v]) * slope[v]);
            }
        }
      for (Index i = 0; i < lines; i++) left_over(n, m * lines + i, s.out_width * columns);
    }
    for (Index m = out_lines * lines; m < in_lines; m++) left_over(n, m, 0);
  }
}

void activation(const ActivationPass& s, bool forward) {
  for_blocks(s.channels, [&](auto vectors, Index c) {
    constexpr int V = decltype(vectors)::value;
    if (s.pool_lines == 1 && s.pool == 1)
      forward ? activation_forward<1, 1, V>(s, c) : activation_backward<1, 1, V>(s, c);
    else if (s.pool_lines == 1 && s.pool == 2)
      forward ? activation_forward<1, 2, V>(s, c) : activation_backward<1, 2, V>(s, c);
    else if (s.pool_lines == 2 && s.pool == 2)
      forward ? activation_forward<2, 2, V>(s, c) : activation_backward<2, 2, V>(s, c);
    else
      forward ? activation_forward<0, 0, V>(s, c) : activation_backward<0, 0, V>(s, c);
  });
}

// Means of `pool_lines` times `pool` neighbouring rows; remaining rows at the ends are skipped.
void mean_forward(const ActivationPass& s) {
  const Index line = s.in_width * s.channels;
  for (Index n = 0; n < s.samples; n++)
    for (Index m = 0; m < s.out_rows / s.out_width; m++)
      for (Index l = 0; l < s.out_width; l++)
        for (Index c = 0; c < s.channels; c += LANES) {
          const float* p = s.x + n * s.x_sample + m * s.pool_lines * line + l * s.pool * s.channels + c;
          Vec sum = {};
          for (Index i = 0; i < s.pool_lines; i++)
            for (Index j = 0; j < s.pool; j++) sum += load(p + i * line + j * s.channels);
          store(s.y + n * s.y_sample + m * s.y_line + l * s.y_row + c, sum / float(s.pool_lines * s.pool));
        }
}

// Remaining rows have no gradient.
void mean_backward(const ActivationPass& s) {
  const float share = 1.0f / float(s.pool_lines * s.pool);
  const Index lines = s.out_rows / s.out_width * s.pool_lines, columns = s.out_width * s.pool;
  for (Index n = 0; n < s.samples; n++)
    for (Index m = 0; m < s.in_rows / s.in_width; m++)
      for (Index l = 0; l < s.in_width; l++) {
        const float* g = s.g + n * s.g_sample + (m / s.pool_lines * s.out_width + l / s.pool) * s.channels;
        float* to = s.y + n * s.y_sample + m * s.y_line + l * s.y_row;
        for (Index c = 0; c < s.channels; c += LANES) {
          const Vec d = m < lines && l < columns ? load(g + c) * share : Vec{};
          store(to + c, s.adds ? load(to + c) + d : d);
        }
      }
}

// y (+)= a, rows of `channels` floats in lines; where there is a second one, y = a + b.
void copy_rows(const float* a, Index a_line, Index a_row, const float* b, Index b_line, Index b_row, float* y, Index y_line, Index y_row,
               Lines rows, Index channels) {
  for (Index l = 0; l < rows.lines; l++)
    for (Index m = 0; m < rows.width; m++)
      for (Index c = 0; c < channels; c += LANES) {
        const Vec x = load(a + l * a_line + m * a_row + c);
        store(y + l * y_line + m * y_row + c, b ? x + load(b + l * b_line + m * b_row + c) : x);
      }
}

// out = sum of `parts` times the rows in lines.
void sum_rows(const float* d, Index part, Index parts, Index line, Index row, Lines rows, Index width, float* out) {
  for_blocks(width, [&](auto vectors, Index c) {
    constexpr int V = decltype(vectors)::value;
    Vec sum[V] = {};
    for (Index n = 0; n < parts; n++)
      for (Index l = 0; l < rows.lines; l++)
        for (Index m = 0; m < rows.width; m++)
          for (int v = 0; v < V; v++) sum[v] += load(d + n * part + l * line + m * row + c + v * LANES);
    for (int v = 0; v < V; v++) store(out + c + v * LANES, sum[v]);
  });
}

// Cross-entropy of one example and, on request, its gradient by the logits times `share`.
// The loss is log(sum(exp(z - max))) + max - z[label]; argmax is the first maximum, or the first NaN, as torch counts it.
float cross_entropy(const float* z, Index classes, Index label, float share, float* gradient, float* probabilities, bool& correct) {
  Index best = 0;
  for (Index c = 1; c < classes; c++)
    if (z[c] > z[best] || (z[c] != z[c] && z[best] == z[best])) best = c;
  correct = best == label;
  float sum = 0;
  for (Index c = 0; c < classes; c++) sum += expf(z[c] - z[best]);
  for (Index c = 0; c < classes && (gradient || probabilities); c++) {
    const float p = expf(z[c] - z[best]) / sum;
    if (gradient) gradient[c] = (p - (c == label)) * share;
    if (probabilities) probabilities[c] = p;
  }
  return label < 0 ? 0 : logf(sum) + (z[best] - z[label]);
}

}  // namespace
}  // namespace SHOAL_TARGET
}  // namespace shoal
