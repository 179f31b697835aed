// Gated recurrent units, as torch has them (K. Cho et al., EMNLP 2014, with the reset gate after the product):
//
//   r = sigmoid(x_r + u_r)   z = sigmoid(x_z + u_z)   n = tanh(x_n + r * u_n)   h' = (1 - z) * n + z * h   with u = U h + b
//
// x, three gates of `width` floats each, comes from a product over all rows at once. Stored for the backward pass: r, z, n and u_n.
#pragma once
#include "layers.h"

namespace shoal {
namespace SHOAL_TARGET {
namespace {

// Rows of one example at one time. `u` becomes r, z, n and u_n; `h` is null at the first time.
void gates_forward(const float* x, float* u, const float* h, float* next, Index width) {
  for (Index c = 0; c < width; c += LANES) {
    const Vec u_n = load(u + 2 * width + c);
    const Vec r = sigmoid(load(x + c) + load(u + c)), z = sigmoid(load(x + width + c) + load(u + width + c));
    const Vec n = hyperbolic_tangent(load(x + 2 * width + c) + r * u_n);
    store(u + c, r), store(u + width + c, z), store(u + 2 * width + c, n), store(u + 3 * width + c, u_n);
    store(next + c, (1.0f - z) * n + (h ? z * load(h + c) : Vec{}));
  }
}

// Computes the gradients by x and by u from the gradient by h', and in `d_h` the part that goes to h past the gates.
void gates_backward(const float* gates, const float* h, const float* d_next, float* d_h, float* d_x, float* d_u, Index width, bool last) {
  for (Index c = 0; c < width; c += LANES) {
    const Vec r = load(gates + c), z = load(gates + width + c), n = load(gates + 2 * width + c), u_n = load(gates + 3 * width + c);
    const Vec d = last ? load(d_next + c) : load(d_next + c) + load(d_h + c);
    const Vec d_n = d * (1.0f - z) * (1.0f - n * n), d_z = d * ((h ? load(h + c) : Vec{}) - n) * z * (1.0f - z);
    const Vec d_r = d_n * u_n * r * (1.0f - r);
    store(d_x + c, d_r), store(d_x + width + c, d_z), store(d_x + 2 * width + c, d_n);
    store(d_u + c, d_r), store(d_u + width + c, d_z), store(d_u + 2 * width + c, d_n * r);
    store(d_h + c, d * z);
  }
}

}  // namespace
}  // namespace SHOAL_TARGET
}  // namespace shoal
