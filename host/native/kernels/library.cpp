// The library's interface: lays a list of layers out as a plan and hands calls to the engine of an instruction set.
//
// Compiled for the machine's baseline only: the standard library's templates must not be instantiated for instruction sets that a machine
// may lack.
#include <algorithm>
#include <new>
#include <vector>
#include "network.h"

namespace shoal {

#define SHOAL_ENGINE(name) \
  namespace name {         \
  extern const Engine engine; \
  }
SHOAL_ENGINE(baseline)
#ifdef SHOAL_X86
SHOAL_ENGINE(avx2)
SHOAL_ENGINE(avx512)
#endif

namespace {

const Engine* engine_of(int target) {
  if (target == 0) return &baseline::engine;
#ifdef SHOAL_X86
  __builtin_cpu_init();
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool has_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512vl");
  if (target == 1 && has_avx2) return &avx2::engine;
  if (target == 2 && has_avx2 && has_avx512) return &avx512::engine;
#endif
  return nullptr;
}

enum LayerKind : int64_t { conv, linear, norm, relu, max_pool, avg_pool, flatten };

// Offsets are of the flat vector, -1 where the layer has no such tensor.
struct Layer {
  int64_t kind, outputs, kernel, stride, padding;
  int64_t weight, bias, running_mean, running_var;
  double eps, momentum;
};

constexpr Index ALIGN = 16;  // floats: a cache line
Index round_up(Index n, Index to) { return (n + to - 1) / to * to; }

struct Network {
  const Engine* engine;
  Plan plan;
  std::vector<Op> ops;
  std::vector<Range> ranges;
  std::vector<int32_t> place;
  std::vector<Tensor> tensors;
  std::vector<Index> constants, outputs;
  std::vector<float> factors;
};

// Walks the layers and keeps track of what the activation looks like: `rows_` rows of `stride_` floats, value i of a row at position_[i].
// Flatten only changes that description: an example's rows are contiguous and become one row; the op before goes on writing rows that are
// `row_` apart.
class Builder {
 public:
  Builder(Network& made, Index channels, Index time, Index flat_size)
      : net_(made), lanes_(made.engine->lanes), panel_(made.engine->panel), rows_(time), position_(channels) {
    net_.place.assign(flat_size, 0);
    for (Index c = 0; c < channels; c++) position_[c] = c;
  }

  void build(const Layer* layers, Index count) {
    Plan& plan = net_.plan;
    // Products read dense rows as well as padded ones, and have less depth then; everything else works on whole vectors.
    Index first = 0;
    while (first < count && layers[first].kind == flatten) first++;
    const bool dense = first < count && (layers[first].kind == conv || layers[first].kind == linear);
    stride_ = row_ = plan.in_stride = dense ? Index(position_.size()) : round_up(position_.size(), lanes_);
    for (Index i = 0; i < count;) i = add(layers, count, i);
    plan.logits = input_view(0);
    net_.outputs = position_;
    plan.outputs = net_.outputs.data(), plan.num_outputs = net_.outputs.size();
    plan.num_ops = int(net_.ops.size()), plan.ops = net_.ops.data(), plan.ranges = net_.ranges.data();
    plan.place = net_.place.data(), plan.flat_size = net_.place.size(), plan.packed_size = packed_;
    plan.tensors = net_.tensors.data(), plan.num_tensors = net_.tensors.size();
    plan.constants = net_.constants.data(), plan.num_constants = net_.constants.size();
    // Workspace: the packed vectors, BatchNorm's statistics, the transposed panel; then, growing with the batch, moments and activations.
    Index at = num_slots * packed_;
    for (Op& op : net_.ops)
      if (op.norm) op.saved = at, at += 2 * op.out_stride;
    plan.transposed = at;
    plan.moments = at += round_up(transposed_, ALIGN);
    for (Op& op : net_.ops)
      for (View* v : {&op.in, &op.grad}) v->fixed = at, v->per_sample += 2 * widest_norm_;
    plan.logits.fixed = at, plan.logits.per_sample += 2 * widest_norm_;
    plan.fixed_size = at + 4 * ALIGN;
    plan.floats_per_sample = 2 * widest_norm_ + per_sample_;
  }

 private:
  // Room for an example's rows of `row` floats with rows of zeros before and after.
  View view(Index rows, Index row, Index before, Index after) {
    View v = {0, per_sample_, before * row, 0, row};
    v.sample = round_up((before + rows + after) * row, ALIGN);
    // Examples of one row are the rows of a matrix: a power of two between them would put them all in the same few sets of the cache.
    if (v.sample % 128 == 0) v.sample += ALIGN;
    per_sample_ += v.sample;
    return v;
  }

  View input_view(Index padding) {
    View v = view(rows_, stride_, padding, padding);
    v.row = row_;
    return v;
  }

  Index take(Index size) {
    const Index at = packed_;
    packed_ += round_up(size, ALIGN);
    return at;
  }

  // A tensor of one value for every position; where the layer has none, zeros or constant ones.
  Index take_row(int64_t flat, bool ones) {
    const Index at = take(stride_);
    if (flat >= 0) net_.tensors.push_back({flat, 0, Index(position_.size())});
    for (size_t i = 0; i < position_.size(); i++) {
      if (flat >= 0)
        net_.place[flat + i] = int32_t(at + position_[i]);
      else if (ones)
        net_.constants.push_back(at + position_[i]);
    }
    return at;
  }

  void finish(const Op& op, Range first, Range second) {
    net_.ops.push_back(op);
    net_.ranges.push_back(first), net_.ranges.push_back(second);
    rows_ = op.out_rows, stride_ = row_ = op.out_stride;
  }

  // Adds the op that begins with layer i; returns the first layer that is not part of it.
  Index add(const Layer* layers, Index count, Index i) {
    const Layer& layer = layers[i];
    switch (layer.kind) {
      case conv:
      case linear: add_product(layer, i + 1 < count && layers[i + 1].kind == norm); return i + 1;
      case avg_pool: add_mean(layer.kernel); return i + 1;
      case flatten: add_flatten(); return i + 1;
    }
    const Layer* normalising = layer.kind == norm ? &layers[i++] : nullptr;
    bool has_relu = false;
    Index pool = 1;
    for (; i < count; i++) {
      if (layers[i].kind == relu && !has_relu)
        has_relu = true;
      else if (layers[i].kind == max_pool && pool == 1)
        pool = layers[i].kernel;
      else
        break;
    }
    add_activation(normalising, has_relu, pool);
    return i;
  }

  void add_product(const Layer& layer, bool norm_follows) {
    const Index inputs = position_.size(), outputs = layer.outputs, kernel = layer.kernel, padding = layer.padding;
    Op op = {};
    op.kind = Kind::product;
    op.in_rows = rows_, op.in_stride = stride_, op.in = input_view(padding);
    op.kernel = kernel, op.stride = layer.stride, op.depth = kernel * stride_, op.reach = kernel - 1 - padding;
    op.out_rows = (rows_ + 2 * padding - kernel) / layer.stride + 1, op.out_stride = round_up(outputs, lanes_);
    // The gradient of the input is a convolution of the output's gradient, whose rows lie `stride` apart with rows of zeros between.
    const Index spread = (op.out_rows - 1) * op.stride + 1, before = std::max<Index>(0, op.reach);
    op.grad = view(spread, op.out_stride, before, std::max<Index>(0, rows_ + padding - spread));
    op.grad.row = op.stride * op.out_stride;
    op.weight = take(op.depth * op.out_stride);
    net_.tensors.push_back({layer.weight, outputs, inputs * kernel});
    for (Index o = 0; o < outputs; o++) {
      const Index panel = o / panel_ * panel_, width = std::min(panel_, op.out_stride - panel);
      for (Index c = 0; c < inputs; c++)
        for (Index tap = 0; tap < kernel; tap++)
          net_.place[layer.weight + (o * inputs + c) * kernel + tap] =
              int32_t(op.weight + panel * op.depth + (tap * stride_ + position_[c]) * width + o - panel);
    }
    transposed_ = std::max(transposed_, kernel * op.out_stride * panel_);
    position_.resize(outputs);
    for (Index o = 0; o < outputs; o++) position_[o] = o;
    stride_ = op.out_stride;
    op.bias = layer.bias < 0 ? -1 : take_row(layer.bias, false);
    op.bias_cancels = norm_follows;
    finish(op, {op.weight, op.depth * op.out_stride}, {op.bias, op.bias < 0 ? 0 : op.out_stride});
  }

  void add_activation(const Layer* normalising, bool has_relu, Index pool) {
    Op op = {};
    op.kind = Kind::activation;
    op.in_rows = rows_, op.in_stride = op.out_stride = stride_, op.in = input_view(0);
    op.out_rows = rows_ / pool, op.pool = pool, op.relu = has_relu, op.stride = 1;
    op.grad = view(op.out_rows, stride_, 0, 0);
    Range factor = {0, 0}, shift = {0, 0};
    if (normalising) {
      op.norm = true, op.eps = float(normalising->eps), op.momentum = float(normalising->momentum);
      op.gamma = take_row(normalising->weight, true), op.beta = take_row(normalising->bias, false);
      op.running_mean = take_row(normalising->running_mean, false), op.running_var = take_row(normalising->running_var, false);
      widest_norm_ = std::max(widest_norm_, stride_);
      if (normalising->weight >= 0) factor = {op.gamma, stride_};
      if (normalising->bias >= 0) shift = {op.beta, stride_};
    }
    finish(op, factor, shift);
  }

  void add_mean(Index pool) {
    Op op = {};
    op.kind = Kind::mean;
    op.in_rows = rows_, op.in_stride = op.out_stride = stride_, op.in = input_view(0);
    op.out_rows = rows_ / pool, op.pool = pool, op.stride = 1;
    op.grad = view(op.out_rows, stride_, 0, 0);
    finish(op, {0, 0}, {0, 0});
  }

  void add_flatten() {
    if (rows_ == 1) return;
    // What follows writes an example's gradient in one piece, so that rows must not be apart.
    if (!net_.ops.empty() && net_.ops.back().stride > 1) add_activation(nullptr, false, 1);
    std::vector<Index> flat(position_.size() * rows_);
    for (size_t c = 0; c < position_.size(); c++)
      for (Index l = 0; l < rows_; l++) flat[c * rows_ + l] = l * stride_ + position_[c];
    position_ = flat;
    stride_ *= rows_;  // row_ stays
    rows_ = 1;
  }

  Network& net_;
  const Index lanes_, panel_;
  Index rows_, stride_ = 0, row_ = 0;
  std::vector<Index> position_;
  Index packed_ = 0, per_sample_ = 0, transposed_ = 0, widest_norm_ = 0;
};

}  // namespace
}  // namespace shoal

#define SHOAL_API extern "C" __attribute__((visibility("default")))

// Whether this machine can run target 0 (the compiler's baseline), 1 (AVX2 with FMA) or 2 (AVX-512).
SHOAL_API int shoal_supports(int target) { return shoal::engine_of(target) != nullptr; }

// A plan, or null where memory is short, the target is missing, there are MAX_OPS layers or more, or an int32 cannot count the values.
SHOAL_API void* shoal_plan_new(int target, const shoal::Layer* layers, int64_t count, int64_t channels, int64_t time, int64_t classes,
                               const float* factors, int64_t flat_size) {
  const shoal::Engine* engine = shoal::engine_of(target);
  if (!engine || count >= shoal::MAX_OPS) return nullptr;
  shoal::Network* made = nullptr;
  try {
    made = new shoal::Network{};
    made->engine = engine;
    made->plan.channels = channels, made->plan.time = time, made->plan.classes = classes;
    shoal::Builder(*made, channels, time, flat_size).build(layers, count);
    if (factors) made->factors.assign(factors, factors + channels);
    made->plan.factors = factors ? made->factors.data() : nullptr;
    if (made->plan.packed_size > INT32_MAX) throw std::bad_alloc();
    return made;
  } catch (...) {
    delete made;
    return nullptr;
  }
}

SHOAL_API void shoal_plan_free(void* plan) { delete static_cast<shoal::Network*>(plan); }

// Floats of a workspace for batches of up to `capacity` examples. It must be zero before its first use, and serves one plan and capacity.
SHOAL_API int64_t shoal_workspace_size(const void* plan, int64_t capacity) {
  const shoal::Plan& p = static_cast<const shoal::Network*>(plan)->plan;
  return p.fixed_size + capacity * p.floats_per_sample;
}

SHOAL_API int shoal_train(const void* plan, shoal::TrainCall* call) {
  const shoal::Network* network = static_cast<const shoal::Network*>(plan);
  return network->engine->train(network->plan, *call);
}

SHOAL_API int shoal_evaluate(const void* plan, shoal::EvaluateCall* call) {
  const shoal::Network* network = static_cast<const shoal::Network*>(plan);
  return network->engine->evaluate(network->plan, *call);
}

SHOAL_API int shoal_forward(const void* plan, const shoal::ForwardCall* call) {
  const shoal::Network* network = static_cast<const shoal::Network*>(plan);
  return network->engine->forward(network->plan, *call);
}

SHOAL_API int shoal_backward(const void* plan, const shoal::BackwardCall* call) {
  const shoal::Network* network = static_cast<const shoal::Network*>(plan);
  return network->engine->backward(network->plan, *call);
}

// total (width,) += the weighted sum of `count` rows, with the best instruction set of this machine.
SHOAL_API void shoal_weighted_sum(const float* const* rows, const float* weights, int64_t count, int64_t width, double* total) {
  const shoal::Engine* engine = nullptr;
  for (int target = 2; !engine; target--) engine = shoal::engine_of(target);
  engine->weighted_sum(rows, weights, count, width, total);
}
