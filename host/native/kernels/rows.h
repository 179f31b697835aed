// Layers that work on each row by itself: LayerNorm (J. L. Ba et al., 2016) and GELU (D. Hendrycks, K. Gimpel, 2016, x times the normal
// distribution function). The padding of a row is zero before and after.
#pragma once
#include "attention.h"

namespace shoal {
namespace SHOAL_TARGET {
namespace {

// Rows of `count` values that are padded to `width` floats.
struct Row {
  Index count, width;
};

// Values of the vector at c that are no padding.
inline Vec inside(const Row& row, Index c, Vec x) {
  for (int i = row.count - c < LANES ? int(row.count - c) : LANES; i < LANES; i++) x[i] = 0;
  return x;
}

inline void center(const Row& row, const float* x, float eps, float& mean, float& inverse) {
  Vec sum = {}, squares = {};
  for (Index c = 0; c < row.width; c += LANES) sum += load(x + c);
  mean = total(sum) / float(row.count);
  for (Index c = 0; c < row.width; c += LANES) {
    const Vec off = inside(row, c, load(x + c) - mean);
    squares += off * off;
  }
  inverse = 1.0f / sqrtf(total(squares) / float(row.count) + eps);
}

void layer_norm_forward(const Row& row, const float* x, float eps, const float* gamma, const float* beta, float* y) {
  float mean, inverse;
  center(row, x, eps, mean, inverse);
  for (Index c = 0; c < row.width; c += LANES) store(y + c, inside(row, c, (load(x + c) - mean) * inverse * load(gamma + c) + load(beta + c)));
}

// dx = inverse * (dh - mean(dh) - h * mean(dh * h)) with h the normalised row and dh = gamma * dy; those by gamma and beta are added up.
void layer_norm_backward(const Row& row, const float* x, float eps, const float* gamma, const float* g, float* d_gamma, float* d_beta,
                         float* d_x, bool adds) {
  float mean, inverse;
  center(row, x, eps, mean, inverse);
  Vec sum = {}, product = {};
  for (Index c = 0; c < row.width; c += LANES) {
    const Vec h = inside(row, c, (load(x + c) - mean) * inverse), d = load(g + c), slope = load(gamma + c) * d;
    store(d_gamma + c, load(d_gamma + c) + d * h);
    store(d_beta + c, load(d_beta + c) + d);
    sum += inside(row, c, slope), product += slope * h;
  }
  if (!d_x) return;
  const float level = total(sum) / float(row.count), tilt = total(product) / float(row.count);
  for (Index c = 0; c < row.width; c += LANES) {
    const Vec h = (load(x + c) - mean) * inverse;
    const Vec moved = inside(row, c, (load(gamma + c) * load(g + c) - level - h * tilt) * inverse);
    store(d_x + c, adds ? load(d_x + c) + moved : moved);
  }
}

// The normal distribution function of x and, in `density`, its derivative, by M. Abramowitz and I. Stegun, 7.1.26: to within 2e-7.
inline Vec normal(Vec x, Vec& density) {
  const Vec size = x < 0 ? -x : x, t = 1.0f / (1.0f + size * 0.23164189f);  // 0.3275911 / sqrt(2)
  const Vec bell = exponential(x * x * -0.5f);
  Vec p = t * 1.061405429f - 1.453152027f;
  p = p * t + 1.421413741f;
  p = p * t - 0.284496736f;
  p = (p * t + 0.254829592f) * t * bell * 0.5f;
  density = bell * 0.3989422804f;
  return x < 0 ? p : 1.0f - p;
}

void gelu_forward(const Row& row, const float* x, float* y) {
  for (Index c = 0; c < row.width; c += LANES) {
    Vec density;
    const Vec at = load(x + c);
    store(y + c, at * normal(at, density));
  }
}

void gelu_backward(const Row& row, const float* x, const float* g, float* d_x, bool adds) {
  for (Index c = 0; c < row.width; c += LANES) {
    Vec density;
    const Vec at = load(x + c), share = normal(at, density), moved = load(g + c) * (share + at * density);
    store(d_x + c, adds ? load(d_x + c) + moved : moved);
  }
}

}  // namespace
}  // namespace SHOAL_TARGET
}  // namespace shoal
