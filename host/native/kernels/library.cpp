// The library's interface: it turns a list of layers into a plan, and passes calls to the engine of an instruction set.
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

enum LayerKind : int64_t { conv, linear, norm, relu, max_pool, avg_pool, flatten, sum, pick, gru, attention, layer_norm, gelu, table, dropout };

// `input` and `other`: the layers whose results it reads, by their numbers, -1 for the network's input; only a sum has two. `before` and
// `after` are the zero rows around an example; pairs are lines and columns. Offsets are of the flat vector, -1 if the layer has no such
// tensor.
struct Layer {
  int64_t kind, outputs, input, other;
  int64_t parts, row;  // number of equal parts of a product's outputs, each padded to whole vectors; the row to pick, or the heads
  int64_t kernel[2], stride[2], before[2], after[2], dilation[2];
  int64_t weight, bias, running_mean, running_var;
  double eps, momentum;
  // A table has `rows` rows: of constants if `values` is not null, else value i of them is number places[i] of its tensor.
  int64_t rows;
  const int64_t* places;
  const float* values;
  // Of dropout: number of random numbers per example, 0 if nothing is dropped. `stride` is the distance from those of a row to the next
  // row's, and from that of a value to the next one's.
  int64_t drawn;
  double share;
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
  std::vector<Index> constants, outputs, offsets;
  std::vector<float> factors, constant_values;
};

// Result of a layer: lines of `width` rows of `stride` floats, value i of a row at position[i].
struct Value {
  Index rows, width, stride;
  std::vector<Index> position;
  int op;     // op that computes it, -1 for the network's input
  View view;
};

// Use of a layer's result by its readers, collected before the result exists.
struct Use {
  Index before[2] = {0, 0}, after[2] = {0, 0};  // zero rows that its readers need around it
  int readers = 0;
  bool only_products = true;  // true if products alone read it, flattened or not
};

// Builder of a plan from the layers. Every op has a buffer for its result, with the zeros around it that its readers need, and one for its
// gradient, unless it uses the buffer of a sum's gradient. Flatten only changes the description: an example's rows are contiguous and become one row.
class Builder {
 public:
  Builder(Network& network, Index channels, Index lines, Index width, Index flat_size)
      : net_(network), lanes_(network.engine->lanes), panel_(network.engine->panel) {
    net_.place.assign(flat_size, 0);
    network.plan.channels = channels, network.plan.lines = lines, network.plan.width = width;
  }

  void build(const Layer* layers, Index count) {
    Plan& plan = net_.plan;
    layers_ = layers, count_ = count;
    find_uses();
    // Products read dense rows as well as padded ones, and have less depth then; everything else works on whole vectors.
    const Use& use = use_of(-1);
    Value input = {plan.lines * plan.width, plan.width, use.only_products ? plan.channels : round_up(plan.channels, lanes_), {}, -1, {}};
    for (Index c = 0; c < plan.channels; c++) input.position.push_back(c);
    input.view = shape_for(input, use);
    plan.in_stride = input.stride, plan.input = reserve(input.view);
    values_.assign(count + 1, Value{});
    values_[0] = input;
    for (Index i = 0; i < count;) i = add(i);
    const Value& last = value_of(count - 1);
    net_.outputs = last.position;
    place_buffers();
    plan.logits = value_at(last.op), plan.logits_gradient = gradient_at(last.op);
    plan.outputs = net_.outputs.data(), plan.num_outputs = net_.outputs.size();
    plan.num_ops = int(net_.ops.size()), plan.ops = net_.ops.data(), plan.ranges = net_.ranges.data();
    plan.place = net_.place.data(), plan.flat_size = net_.place.size(), plan.packed_size = packed_;
    plan.tensors = net_.tensors.data(), plan.num_tensors = net_.tensors.size();
    plan.constants = net_.constants.data(), plan.num_constants = net_.constants.size();
    plan.constant_values = net_.constant_values.data();
    note_writers();
    // Workspace: the packed vectors, BatchNorm's statistics, the transposed panel; then, growing with the batch, moments and activations.
    Index at = num_slots * packed_;
    for (Op& op : net_.ops)
      if (op.norm) op.saved = at, at += 2 * op.out_stride;
    plan.transposed = at;
    plan.moments = at += round_up(transposed_, ALIGN);
    const auto place = [&](View& view) { view.fixed = at, view.per_sample += 2 * widest_norm_; };
    for (Op& op : net_.ops) {
      for (View* v : {&op.in.value, &op.in.gradient, &op.other.value, &op.other.gradient, &op.out, &op.grad, &op.gates, &op.states}) place(*v);
      op.runs.offsets = net_.offsets.data() + op.first_offset, op.back_runs.offsets = op.runs.offsets + op.runs.count;
      op.position = op.runs.offsets;
    }
    for (View* v : {&plan.input, &plan.logits, &plan.logits_gradient}) place(*v);
    plan.fixed_size = at + 4 * ALIGN;
    plan.floats_per_sample = 2 * widest_norm_ + per_sample_;
  }

 private:
  Value& value_of(Index layer) { return values_[layer + 1]; }
  Use& use_of(Index layer) { return uses_[layer + 1]; }

  void find_uses() {
    uses_.assign(count_ + 1, Use{});
    for (Index i = count_ - 1; i >= 0; i--) {
      const Layer& layer = layers_[i];
      const bool product = layer.kind == conv || layer.kind == linear || (layer.kind == flatten && use_of(i).only_products);
      for (int second = 0; second <= (layer.kind == sum); second++) {
        Use& use = use_of(second ? layer.other : layer.input);
        use.readers++, use.only_products &= product;
        for (int d : {0, 1}) {
          use.before[d] = std::max<Index>(use.before[d], layer.before[d]);
          use.after[d] = std::max<Index>(use.after[d], layer.after[d]);
        }
      }
    }
  }

  static std::vector<Input*> inputs_of(Op& op) {
    if (op.kind == Kind::sum) return {&op.in, &op.other};
    return {&op.in};
  }

  // In the order of the backward pass, the first op writes a gradient, and all others add to it.
  void note_writers() {
    std::vector<bool> written(net_.ops.size() + 1);
    for (Index i = Index(net_.ops.size()) - 1; i >= 0; i--)
      for (Input* input : inputs_of(net_.ops[i])) {
        input->adds = written[input->producer + 1];
        written[input->producer + 1] = true;
      }
  }

  // Gives every op's result and gradient a buffer, and its inputs those of their producers.
  //
  // A sum hands its gradient on unchanged, so that an input may use the sum's buffer for its own gradient: the later input if the sum is its
  // only reader, the earlier one if its other readers come before the later input (or, if that has a buffer of its own, before the sum).
  // In the backward pass they then add to the buffer after it has been read. A later input that is a sum keeps its own: its inputs would
  // read the buffer still later.
  void place_buffers() {
    const Index count = net_.ops.size();
    std::vector<Index> last_reader(count + 1, -1), previous_reader(count + 1, -1);  // of the network's input, then of each op
    for (Index i = 0; i < count; i++)
      for (const Input* input : inputs_of(net_.ops[i])) {
        Index& last = last_reader[input->producer + 1];
        previous_reader[input->producer + 1] = last, last = i;
      }
    std::vector<bool> shares(count);
    for (Index i = count - 1; i >= 0; i--) {
      Op& op = net_.ops[i];
      op.out = reserve(op.out);
      if (!shares[i]) op.grad = reserve(op.grad);
      if (op.kind != Kind::sum) continue;
      // Lets the input use the sum's buffer, unless another reader comes at or after op `from`.
      const auto share = [&](Index producer, Index from) {
        if (producer < 0 || previous_reader[producer + 1] >= from) return false;
        View& shared = net_.ops[producer].grad;
        const bool alike = shared.sample == op.grad.sample && shared.lead == op.grad.lead && shared.line == op.grad.line && shared.row == op.grad.row;
        if (alike) shared = op.grad, shares[producer] = true;
        return alike;
      };
      const Index early = std::min(op.in.producer, op.other.producer), late = std::max(op.in.producer, op.other.producer);
      const bool late_shares = late >= 0 && net_.ops[late].kind != Kind::sum && share(late, 0);
      share(early, late_shares ? late : i);
    }
    for (Op& op : net_.ops)
      for (Input* input : inputs_of(op)) input->value = value_at(input->producer), input->gradient = gradient_at(input->producer);
  }

  View value_at(Index op) const { return op < 0 ? net_.plan.input : net_.ops[op].out; }
  View gradient_at(Index op) const { return op < 0 ? View{} : net_.ops[op].grad; }

  // Layout of an example's lines of `width` rows of `row` floats with zeros around them; `reserve` gives it a place.
  View shape(Index lines, Index width, Index row, const Index* before, const Index* after) {
    View v = {0, 0, 0, 0, (before[1] + width + after[1]) * row, row};
    v.lead = before[0] * v.line + before[1] * row;
    v.sample = round_up((before[0] + lines + after[0]) * v.line, ALIGN);
    // Examples of one row are the rows of a matrix: a power of two between them would put them all in the same few sets of the cache.
    if (v.sample % 128 == 0) v.sample += ALIGN;
    return v;
  }

  // Gives the view a place in the workspace.
  View reserve(View view) {
    view.per_sample = per_sample_, per_sample_ += view.sample;
    return view;
  }

  View shape_for(const Value& value, const Use& use) { return shape(value.rows / value.width, value.width, value.stride, use.before, use.after); }

  Index take(Index size) {
    const Index at = packed_;
    packed_ += round_up(size, ALIGN);
    return at;
  }

  // A tensor of one value for every position of `value`; if the layer has none, zeros or constant ones.
  Index take_row(const Value& value, int64_t flat, bool ones) {
    const Index at = take(value.stride);
    if (flat >= 0) net_.tensors.push_back({flat, 0, Index(value.position.size())});
    for (size_t i = 0; i < value.position.size(); i++) {
      if (flat >= 0)
        net_.place[flat + i] = int32_t(at + value.position[i]);
      else if (ones)
        keep(at + value.position[i], 1.0f);
    }
    return at;
  }

  // A packed parameter that has this value and never changes.
  void keep(Index at, float value) { net_.constants.push_back(at), net_.constant_values.push_back(value); }

  Op op_of(Kind kind, const Value& from) const {
    Op op = {};
    op.kind = kind, op.in.producer = from.op;
    op.in_rows = from.rows, op.in_width = from.width, op.in_stride = from.stride;
    op.stride = op.stride_lines = op.pool = op.pool_lines = 1;
    op.drawn = -1;
    return op;
  }

  // Adds the op, with room for what the result's readers need around it. Its gradient has no such room unless the op has set it.
  Value finish(Op op, Value result, const Use& use, Range first, Range second) {
    result.op = int(net_.ops.size());
    result.view = op.out = shape_for(result, use);
    op.out_rows = result.rows, op.out_width = result.width, op.out_stride = result.stride;
    if (!op.grad.sample) op.grad = shape_for(result, Use{});
    net_.ops.push_back(op);
    net_.ranges.push_back(first), net_.ranges.push_back(second);
    return result;
  }

  // True if layer i + 1 alone reads layer i's result.
  bool goes_on(Index i) { return i + 1 < count_ && layers_[i + 1].input == i && layers_[i + 1].kind != sum && use_of(i).readers == 1; }

  // Adds the op that begins with layer i; returns the first layer that is not part of it.
  Index add(Index i) {
    const Layer& layer = layers_[i];
    const Value& from = value_of(layer.input);
    switch (layer.kind) {
      case conv:
      case linear: value_of(i) = product(layer, from, use_of(i), goes_on(i) && layers_[i + 1].kind == norm); return i + 1;
      case avg_pool: value_of(i) = mean(layer, from, use_of(i)); return i + 1;
      case flatten: value_of(i) = flattened(from); return i + 1;
      case pick: value_of(i) = picked(layer, from, use_of(i)); return i + 1;
      case gru: value_of(i) = recurrent(layer, from, use_of(i)); return i + 1;
      case attention: value_of(i) = attended(layer, from, use_of(i)); return i + 1;
      case layer_norm:
      case gelu: value_of(i) = by_row(layer, from, use_of(i)); return i + 1;
      case table: value_of(i) = tabled(layer, from, use_of(i)); return i + 1;
      case dropout: value_of(i) = dropped(layer, from, use_of(i)); return i + 1;
      case sum: value_of(i) = sum_of(from, value_of(layer.other), use_of(i)); return i + 1;
    }
    const Layer* normalising = layer.kind == norm ? &layer : nullptr;
    const Layer* pooling = layer.kind == max_pool ? &layer : nullptr;
    bool has_relu = layer.kind == relu;
    for (; goes_on(i); i++) {
      const Layer& next = layers_[i + 1];
      if (next.kind == relu && !has_relu)
        has_relu = true;
      else if (next.kind == max_pool && !pooling)
        pooling = &next;
      else
        break;
    }
    value_of(i) = activation(normalising, has_relu, pooling, from, use_of(i));
    return i + 1;
  }

  Value product(const Layer& layer, const Value& from, const Use& use, bool norm_follows) {
    const Index inputs = from.position.size(), outputs = layer.outputs, taps = layer.kernel[0] * layer.kernel[1];
    Op op = op_of(Kind::product, from);
    op.taps = taps, op.depth = taps * from.stride, op.stride_lines = layer.stride[0], op.stride = layer.stride[1];
    const Index size[2] = {from.rows / from.width, from.width};
    Index out[2], spread[2], reach[2], before[2], after[2];
    for (int d : {0, 1}) {
      const Index extent = layer.dilation[d] * (layer.kernel[d] - 1);
      out[d] = (size[d] + layer.before[d] + layer.after[d] - extent - 1) / layer.stride[d] + 1;
      // The gradient of the input is a convolution of the output's gradient, whose rows lie `stride` apart with rows of zeros between.
      spread[d] = (out[d] - 1) * layer.stride[d] + 1, reach[d] = extent - layer.before[d];
      before[d] = std::max<Index>(0, reach[d]), after[d] = std::max<Index>(0, size[d] + layer.before[d] - spread[d]);
    }
    const Index part = outputs / layer.parts, room = round_up(part, lanes_);
    Value result = {out[0] * out[1], out[1], layer.parts * room, {}, 0, {}};
    for (Index o = 0; o < outputs; o++) result.position.push_back(o / part * room + o % part);
    op.grad = shape(spread[0], spread[1], result.stride, before, after);
    op.start = -(layer.before[0] * from.view.line + layer.before[1] * from.view.row);
    op.back_start = -(reach[0] * op.grad.line + reach[1] * result.stride);
    op.first_offset = Index(net_.offsets.size());
    op.runs = runs(layer, from.stride, from.view.line), op.back_runs = runs(layer, result.stride, op.grad.line);
    op.grad.line *= layer.stride[0], op.grad.row *= layer.stride[1];
    op.weight = matrix(layer, from, result, taps);
    transposed_ = std::max(transposed_, taps * result.stride * panel_);
    op.bias = layer.bias < 0 ? -1 : take_row(result, layer.bias, false);
    op.bias_cancels = norm_follows;
    return finish(op, result, use, {op.weight, op.depth * result.stride}, {op.bias, op.bias < 0 ? 0 : result.stride});
  }

  // The packed matrix of `taps` times the values of `from`, by the values of `result`.
  Index matrix(const Layer& layer, const Value& from, const Value& result, Index taps) {
    const Index inputs = from.position.size(), depth = taps * from.stride, at = take(depth * result.stride);
    const Index part = result.position.size() / layer.parts;
    for (Index p = 0; p < layer.parts; p++) net_.tensors.push_back({layer.weight + p * part * inputs * taps, part, inputs * taps});
    for (Index o = 0; o < Index(result.position.size()); o++) {
      const Index to = result.position[o], panel = to / panel_ * panel_, width = std::min(panel_, result.stride - panel);
      for (Index c = 0; c < inputs; c++)
        for (Index tap = 0; tap < taps; tap++)
          net_.place[layer.weight + (o * inputs + c) * taps + tap] =
              int32_t(at + panel * depth + (tap * from.stride + from.position[c]) * width + to - panel);
    }
    return at;
  }

  // Reads a third of the values for each gate.
  Value recurrent(const Layer& layer, const Value& from, const Use& use) {
    Op op = op_of(Kind::gru, from);
    Value result = from;
    result.stride = from.stride / 3;
    result.position.resize(layer.outputs);
    const Index width = result.stride, none[2] = {0, 0};
    op.weight = matrix(layer, result, from, 1);
    op.bias = layer.bias < 0 ? -1 : take_row(from, layer.bias, false);
    op.gates = reserve(shape(1, from.rows, 4 * width, none, none));
    op.states = reserve(shape(1, 1 + 3 * from.rows, width, none, none));
    transposed_ = std::max(transposed_, 3 * width * width);
    return finish(op, result, use, {op.weight, 3 * width * width}, {op.bias, op.bias < 0 ? 0 : 3 * width});
  }

  // Reads a third of the values each for queries, keys and values.
  Value attended(const Layer& layer, const Value& from, const Use& use) {
    Op op = op_of(Kind::attention, from);
    Value result = from;
    result.stride = from.stride / 3;
    result.position.resize(layer.outputs);
    op.heads = layer.row, op.values = layer.outputs;
    const Index rows = round_up(from.rows, lanes_), size = round_up(layer.outputs / layer.row, lanes_);
    transposed_ = std::max(transposed_, 2 * rows * (2 * size + rows));
    draws(op, layer);
    return finish(op, result, use, {0, 0}, {0, 0});
  }

  void draws(Op& op, const Layer& layer) {
    if (layer.drawn) op.drawn = num_drawn_++, op.drawn_size = layer.drawn, op.share = float(layer.share);
  }

  Value dropped(const Layer& layer, const Value& from, const Use& use) {
    Op op = op_of(Kind::dropout, from);
    op.values = from.position.size(), op.drawn_row = layer.stride[0], op.drawn_value = layer.stride[1];
    op.first_offset = Index(net_.offsets.size()), op.dense = op.drawn_value == 1;
    for (Index i = 0; i < op.values; i++) op.dense &= from.position[i] == i;
    net_.offsets.insert(net_.offsets.end(), from.position.begin(), from.position.end());
    draws(op, layer);
    return finish(op, from, use, {0, 0}, {0, 0});
  }

  Value tabled(const Layer& layer, const Value& from, const Use& use) {
    Op op = op_of(Kind::table, from);
    Value result = from;
    result.rows += layer.row, result.width += layer.row;
    op.row = layer.row, op.table_rows = layer.rows, op.weight = take(layer.rows * from.stride);
    const Index values = from.position.size();
    if (!layer.values) net_.tensors.push_back({layer.weight, 0, layer.rows * values});
    for (Index i = 0; i < layer.rows * values; i++) {
      const Index at = op.weight + i / values * from.stride + from.position[i % values];
      if (layer.values)
        keep(at, layer.values[i]);
      else
        net_.place[layer.weight + layer.places[i]] = int32_t(at);
    }
    return finish(op, result, use, {op.weight, layer.values ? 0 : layer.rows * from.stride}, {0, 0});
  }

  Value by_row(const Layer& layer, const Value& from, const Use& use) {
    Op op = op_of(layer.kind == gelu ? Kind::gelu : Kind::layer_norm, from);
    op.values = from.position.size(), op.eps = float(layer.eps);
    if (layer.kind == gelu) return finish(op, from, use, {0, 0}, {0, 0});
    op.gamma = take_row(from, layer.weight, true), op.beta = take_row(from, layer.bias, false);
    return finish(op, from, use, {op.gamma, layer.weight < 0 ? 0 : from.stride}, {op.beta, layer.bias < 0 ? 0 : from.stride});
  }

  Value picked(const Layer& layer, const Value& from, const Use& use) {
    Op op = op_of(Kind::pick, from);
    op.row = layer.row;
    Value result = from;
    result.rows = result.width = 1;
    return finish(op, result, use, {0, 0}, {0, 0});
  }

  // Input of a kernel in rows of `stride` floats in lines of `line`: a run for each of its lines, or for each tap if it is dilated.
  Runs runs(const Layer& layer, Index stride, Index line) {
    const bool whole = layer.dilation[1] == 1;
    const Index columns = whole ? 1 : layer.kernel[1];
    for (Index i = 0; i < layer.kernel[0]; i++)
      for (Index j = 0; j < columns; j++) net_.offsets.push_back(i * layer.dilation[0] * line + j * layer.dilation[1] * stride);
    return {nullptr, layer.kernel[0] * columns, whole ? layer.kernel[1] * stride : stride};
  }

  Value pooled(Op& op, const Layer* layer, const Value& from) {
    if (layer) op.pool_lines = layer->kernel[0], op.pool = layer->kernel[1];
    Value result = from;
    result.width = from.width / op.pool;
    result.rows = from.rows / from.width / op.pool_lines * result.width;
    return result;
  }

  Value activation(const Layer* normalising, bool has_relu, const Layer* pooling, const Value& input, const Use& use) {
    const Value from = bare(input);
    Op op = op_of(Kind::activation, from);
    const Value result = pooled(op, pooling, from);
    op.relu = has_relu;
    Range factor = {0, 0}, shift = {0, 0};
    if (normalising) {
      op.norm = true, op.eps = float(normalising->eps), op.momentum = float(normalising->momentum);
      op.gamma = take_row(from, normalising->weight, true), op.beta = take_row(from, normalising->bias, false);
      op.running_mean = take_row(from, normalising->running_mean, false);
      op.running_var = take_row(from, normalising->running_var, false);
      widest_norm_ = std::max(widest_norm_, from.stride);
      if (normalising->weight >= 0) factor = {op.gamma, from.stride};
      if (normalising->bias >= 0) shift = {op.beta, from.stride};
    }
    return finish(op, result, use, factor, shift);
  }

  Value mean(const Layer& layer, const Value& input, const Use& use) {
    const Value from = bare(input);
    Op op = op_of(Kind::mean, from);
    const Value result = pooled(op, &layer, from);
    return finish(op, result, use, {0, 0}, {0, 0});
  }

  // A sum's inputs may hold their values in other orders only if they were flattened, and then in the same one.
  Value sum_of(const Value& one, const Value& two, const Use& use) {
    Op op = op_of(Kind::sum, one);
    op.other.producer = two.op;
    return finish(op, one, use, {0, 0}, {0, 0});
  }

  // The same rows with nothing around them, for readers of contiguous rows.
  Value bare(const Value& from) {
    const bool padded = from.rows > 1 && (from.view.row * from.width != from.view.line || from.view.lead);
    if (!padded) return from;
    return finish(op_of(Kind::copy, from), from, Use{}, {0, 0}, {0, 0});
  }

  Value flattened(const Value& input) {
    if (input.rows == 1) return input;
    Value result = bare(input);
    // The next op writes an example's gradient in one piece, so that rows must be contiguous.
    if (result.op >= 0 && (net_.ops[result.op].grad.row != result.stride || net_.ops[result.op].grad.line != result.stride * result.width))
      result = finish(op_of(Kind::copy, result), result, Use{}, {0, 0}, {0, 0});
    std::vector<Index> flat(result.position.size() * result.rows);
    for (size_t c = 0; c < result.position.size(); c++)
      for (Index l = 0; l < result.rows; l++) flat[c * result.rows + l] = l * result.stride + result.position[c];
    result.position = flat;
    result.stride *= result.rows;
    result.rows = result.width = 1;
    return result;
  }

  Network& net_;
  const Index lanes_, panel_;
  const Layer* layers_ = nullptr;
  Index count_ = 0;
  std::vector<Use> uses_;
  std::vector<Value> values_;
  Index packed_ = 0, per_sample_ = 0, transposed_ = 0, widest_norm_ = 0;
  int num_drawn_ = 0;
};

}  // namespace
}  // namespace shoal

#define SHOAL_API extern "C" __attribute__((visibility("default")))

// Returns true if this machine can run target 0 (the compiler's baseline), 1 (AVX2 with FMA) or 2 (AVX-512).
SHOAL_API int shoal_supports(int target) { return shoal::engine_of(target) != nullptr; }

// Returns a plan, or null if memory is short, the target is missing, there are more than MAX_OPS operations, or an int32 cannot count the values.
SHOAL_API void* shoal_plan_new(int target, const shoal::Layer* layers, int64_t count, int64_t channels, int64_t lines,
                               int64_t width, int64_t classes, const float* factors, int64_t flat_size) {
  const shoal::Engine* engine = shoal::engine_of(target);
  if (!engine) return nullptr;
  shoal::Network* network = nullptr;
  try {
    network = new shoal::Network{};
    network->engine = engine;
    network->plan.classes = classes;
    shoal::Builder(*network, channels, lines, width, flat_size).build(layers, count);
    if (factors) network->factors.assign(factors, factors + channels);
    network->plan.factors = factors ? network->factors.data() : nullptr;
    if (network->plan.packed_size > INT32_MAX || network->plan.num_ops > shoal::MAX_OPS) throw std::bad_alloc();
    return network;
  } catch (...) {
    delete network;
    return nullptr;
  }
}

SHOAL_API void shoal_plan_free(void* plan) { delete static_cast<shoal::Network*>(plan); }

// Returns the number of floats of a workspace for batches of up to `capacity` examples. It must be zero before its first use, and serves one plan and capacity.
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
