// Engine of plans: training steps, evaluation, prediction. Compiled once per instruction set, in the namespace SHOAL_TARGET.
#include "recurrent.h"
#include "rows.h"
#include "sums.h"

namespace shoal {
namespace SHOAL_TARGET {
namespace {

struct Run {
  const Plan& plan;
  float* workspace;
  Index capacity;  // examples that the workspace has room for
  Index batch;     // examples of the batch at hand
  bool training, move_statistics;
  const float* const* drawn;  // random numbers of the call, or null if nothing is dropped
  Index first;                // of the batch's examples among them

  float* slot(Slot which) const { return workspace + which * plan.packed_size; }
  float* weights() const { return slot(slot_weights); }
  float* at(const View& view) const { return rows_of(view, capacity, workspace); }
  // An op's random numbers for example n, or null.
  const float* drawn_of(const Op& op, Index n) const {
    return drawn && op.drawn >= 0 ? drawn[op.drawn] + (first + n) * op.drawn_size : nullptr;
  }
};

// Rows of a batch for a product: line by line of every example, or all at once if every example has one row.
struct Rows {
  Index parts, count;  // of rows one after the other, all alike
  Lines lines;         // of a part
  Rows(Index rows, Index width, Index batch)
      : parts(rows == 1 ? 1 : batch), count(rows == 1 ? batch : rows), lines(rows == 1 ? Lines{1, batch} : Lines{rows / width, width}) {}
};

inline Index step(Index rows_per_example, const View& view) { return rows_per_example == 1 ? view.sample : view.row; }

float* means_of(const Run& run) { return run.workspace + run.plan.moments; }
float* squares_of(const Run& run, const Op& norm) { return means_of(run) + run.capacity * norm.out_stride; }

// Moments of one example's rows (or of all rows, if examples have one), computed while they are in the cache.
void note_moments(const Run& run, const Op& norm, Index part, const float* x, Index row, Index rows) {
  float* mean = means_of(run) + part * norm.out_stride;
  moments(x, row, rows, norm.out_stride, part ? mean - norm.out_stride : nullptr, mean, squares_of(run, norm) + part * norm.out_stride);
}

// Op after op i, if op i is a product whose rows it normalises unchanged: then the product computes its moments. Flattened rows do not
// qualify.
const Op* norm_after(const Plan& plan, int i) {
  if (i < 0 || i + 1 >= plan.num_ops) return nullptr;
  const Op &op = plan.ops[i], &next = plan.ops[i + 1];
  const bool feeds = op.kind == Kind::product && next.norm && next.in.producer == i && next.in_rows == op.out_rows;
  return feeds ? &next : nullptr;
}

// Rows of the input between the first windows of neighbouring lines and of neighbouring rows.
inline Index window_line(const Op& op) { return op.stride_lines * op.in.value.line; }
inline Index window_row(const Op& op) { return op.out_rows == 1 ? op.in.value.sample : op.stride * op.in.value.row; }

void forward_product(const Run& run, int i) {
  const Op& op = run.plan.ops[i];
  const Op* norm = run.training ? norm_after(run.plan, i) : nullptr;
  const Rows rows(op.out_rows, op.out_width, run.batch);
  const float *x = run.at(op.in.value) + op.start, *bias = op.bias < 0 ? nullptr : run.weights() + op.bias;
  const Index y_row = step(op.out_rows, op.out);
  for (Index n = 0; n < rows.parts; n++) {
    float* y = run.at(op.out) + n * op.out.sample;
    for (Index l = 0; l < rows.lines.lines; l++)
      multiply(x + n * op.in.value.sample + l * window_line(op), window_row(op), op.runs, run.weights() + op.weight, op.out_stride,
               y + l * op.out.line, y_row, bias, 0, rows.lines.width);
    if (norm) note_moments(run, *norm, n, y, y_row, rows.count);
  }
}

ActivationPass pass_of(const Run& run, const Op& op) {
  ActivationPass s = {};
  s.samples = run.batch, s.in_rows = op.in_rows, s.in_width = op.in_width, s.out_rows = op.out_rows, s.out_width = op.out_width;
  s.channels = op.out_stride, s.pool_lines = op.pool_lines, s.pool = op.pool;
  s.x = run.at(op.in.value), s.x_sample = op.in.value.sample;
  s.floor = op.relu ? 0.0f : -INFINITY;
  if (op.norm) {
    s.mean = run.workspace + op.saved, s.inverse = s.mean + op.out_stride;
    s.gamma = run.weights() + op.gamma, s.beta = run.weights() + op.beta;
    s.d_gamma = run.slot(slot_gradient) + op.gamma, s.d_beta = run.slot(slot_gradient) + op.beta;
  }
  return s;
}

ActivationPass forward_pass_of(const Run& run, const Op& op) {
  ActivationPass s = pass_of(run, op);
  s.y = run.at(op.out), s.y_sample = op.out.sample, s.y_line = op.out.line, s.y_row = op.out.row;
  return s;
}

void forward_activation(const Run& run, int i) {
  const Op& op = run.plan.ops[i];
  const View& in = op.in.value;
  if (op.norm) {
    float *mean = run.workspace + op.saved, *inverse = mean + op.out_stride;
    float *running_mean = run.weights() + op.running_mean, *running_var = run.weights() + op.running_var;
    if (run.training) {
      const Rows rows(op.in_rows, op.in_width, run.batch);
      if (norm_after(run.plan, i - 1) != &op)
        for (Index n = 0; n < rows.parts; n++) note_moments(run, op, n, run.at(in) + n * in.sample, step(op.in_rows, in), rows.count);
      combine_moments(means_of(run), squares_of(run, op), rows.parts, rows.count, op.out_stride, op.eps, op.momentum, mean, inverse,
                      run.move_statistics ? running_mean : nullptr, running_var);
    } else {
      for (Index c = 0; c < op.out_stride; c++) mean[c] = running_mean[c], inverse[c] = 1.0f / sqrtf(running_var[c] + op.eps);
    }
  }
  activation(forward_pass_of(run, op), true);
}

void forward_copy(const Run& run, const Op& op) {
  const View &a = op.in.value, &b = op.other.value;
  for (Index n = 0; n < run.batch; n++) {
    const float* added = op.kind == Kind::sum ? run.at(b) + n * b.sample : nullptr;
    copy_rows(run.at(a) + n * a.sample, a.line, a.row, added, b.line, b.row, run.at(op.out) + n * op.out.sample, op.out.line, op.out.row,
              {op.out_rows / op.out_width, op.out_width}, op.out_stride);
  }
}

void forward_pick(const Run& run, const Op& op) {
  const View &a = op.in.value, &y = op.out;
  for (Index n = 0; n < run.batch; n++)
    memcpy(run.at(y) + n * y.sample, run.at(a) + n * a.sample + op.row * a.row, sizeof(float) * op.out_stride);
}

void forward_gru(const Run& run, const Op& op) {
  const View &x = op.in.value, &y = op.out, &gates = op.gates;
  const Index width = op.out_stride;
  const Index zero = 0;
  const float* bias = op.bias < 0 ? nullptr : run.weights() + op.bias;
  for (Index t = 0; t < op.in_rows; t++) {
    float *u = run.at(gates) + t * gates.row, *next = run.at(y) + t * y.row;
    const float* h = next - y.row;
    // Before the first time h is zero, so that only the bias remains.
    multiply(h, y.sample, {&zero, t > 0, width}, run.weights() + op.weight, 3 * width, u, gates.sample, bias, 0, run.batch);
    for (Index n = 0; n < run.batch; n++)
      gates_forward(run.at(x) + n * x.sample + t * x.row, u + n * gates.sample, t ? h + n * y.sample : nullptr, next + n * y.sample, width);
  }
}

Heads heads_of(const Op& op) {
  const auto whole = [](Index n) { return (n + LANES - 1) / LANES * LANES; };
  const Index size = op.values / op.heads;
  return {op.heads, size, op.in_rows, op.in_stride / 3, whole(op.in_rows), whole(size), 1.0f / sqrtf(float(size))};
}

void forward_attention(const Run& run, const Op& op) {
  const View &x = op.in.value, &y = op.out;
  for (Index n = 0; n < run.batch; n++)
    attention_forward(heads_of(op), run.at(x) + n * x.sample, x.row, {run.drawn_of(op, n), op.share}, run.at(y) + n * y.sample, y.row, run.workspace + run.plan.transposed);
}

void backward_attention(const Run& run, const Op& op) {
  const View &x = op.in.value, &to = op.in.gradient, &g = op.grad;
  for (Index n = 0; n < run.batch; n++)
    attention_backward(heads_of(op), run.at(x) + n * x.sample, x.row, {run.drawn_of(op, n), op.share}, run.at(g) + n * g.sample, g.row,
                       run.at(to) + n * to.sample, to.row, run.workspace + run.plan.transposed);
}

// Row t of example n, in lines of `width` rows.
inline Index row_at(const View& view, Index width, Index n, Index t) { return n * view.sample + t / width * view.line + t % width * view.row; }

void forward_rows(const Run& run, const Op& op) {
  const View &a = op.in.value, &b = op.out;
  for (Index n = 0; n < run.batch; n++)
    for (Index t = 0; t < op.in_rows; t++) {
      const float* x = run.at(a) + row_at(a, op.in_width, n, t);
      float* y = run.at(b) + row_at(b, op.in_width, n, t);
      if (op.kind == Kind::gelu)
        gelu_forward({op.values, op.out_stride}, x, y);
      else
        layer_norm_forward({op.values, op.out_stride}, x, op.eps, run.weights() + op.gamma, run.weights() + op.beta, y);
    }
}

void backward_rows(const Run& run, const Op& op, bool move_inputs) {
  const View &a = op.in.value, &b = op.in.gradient, &c = op.grad;
  float *d_gamma = run.slot(slot_gradient) + op.gamma, *d_beta = run.slot(slot_gradient) + op.beta;
  if (op.kind == Kind::layer_norm) memset(d_gamma, 0, sizeof(float) * op.out_stride), memset(d_beta, 0, sizeof(float) * op.out_stride);
  for (Index n = 0; n < run.batch; n++)
    for (Index t = 0; t < op.in_rows; t++) {
      const float *x = run.at(a) + row_at(a, op.in_width, n, t), *g = run.at(c) + row_at(c, op.in_width, n, t);
      float* d_x = move_inputs ? run.at(b) + row_at(b, op.in_width, n, t) : nullptr;
      if (op.kind == Kind::layer_norm)
        layer_norm_backward({op.values, op.out_stride}, x, op.eps, run.weights() + op.gamma, g, d_gamma, d_beta, d_x, op.in.adds);
      else if (move_inputs)
        gelu_backward({op.values, op.out_stride}, x, g, d_x, op.in.adds);
    }
}

void forward_table(const Run& run, const Op& op) {
  const View &a = op.in.value, &y = op.out;
  const float* table = run.weights() + op.weight;
  const Vec none = {};
  for (Index n = 0; n < run.batch; n++)
    for (Index t = 0; t < op.out_rows; t++) {
      const float* x = t < op.row ? nullptr : run.at(a) + n * a.sample + (t - op.row) * a.row;
      const float* added = t < op.table_rows ? table + t * op.out_stride : nullptr;
      float* to = run.at(y) + n * y.sample + t * y.row;
      for (Index c = 0; c < op.out_stride; c += LANES) store(to + c, (x ? load(x + c) : none) + (added ? load(added + c) : none));
    }
}

void backward_table(const Run& run, const Op& op, bool train, bool move_inputs) {
  const View &g = op.grad, &to = op.in.gradient;
  float* table = run.slot(slot_gradient) + op.weight;
  if (train) memset(table, 0, sizeof(float) * op.table_rows * op.out_stride);
  for (Index n = 0; n < run.batch; n++)
    for (Index t = 0; t < op.out_rows; t++) {
      const float* d = run.at(g) + n * g.sample + t * g.row;
      float* gradient_row = train && t < op.table_rows ? table + t * op.out_stride : nullptr;
      float* d_x = move_inputs && t >= op.row ? run.at(to) + n * to.sample + (t - op.row) * to.row : nullptr;
      for (Index c = 0; c < op.out_stride; c += LANES) {
        if (gradient_row) store(gradient_row + c, load(gradient_row + c) + load(d + c));
        if (d_x) store(d_x + c, op.in.adds ? load(d_x + c) + load(d + c) : load(d + c));
      }
    }
}

// Writes each value of `from` after dropout into `to`, and zeros around them in a row; or adds it.
void drop_rows(const Run& run, const Op& op, const View& from, const View& to, bool adds) {
  const float factor = 1.0f / (1.0f - op.share);
  for (Index n = 0; n < run.batch; n++) {
    const float* drawn = run.drawn_of(op, n);
    for (Index r = 0; r < op.in_rows; r++) {
      const float* x = run.at(from) + row_at(from, op.in_width, n, r);
      float* y = run.at(to) + row_at(to, op.in_width, n, r);
      if (!adds) memset(y, 0, sizeof(float) * op.out_stride);
      if (drawn && op.dense && !adds) {
        drop(drawn + r * op.drawn_row, op.share, x, op.values, y);
        continue;
      }
      for (Index i = 0; i < op.values; i++) {
        const Index at = op.position[i];
        const float value = !drawn ? x[at] : x[at] * (drawn[r * op.drawn_row + i * op.drawn_value] >= op.share ? factor : 0.0f);
        y[at] = adds ? y[at] + value : value;
      }
    }
  }
}

void forward(const Run& run) {
  for (int i = 0; i < run.plan.num_ops; i++) {
    const Op& op = run.plan.ops[i];
    switch (op.kind) {
      case Kind::product: forward_product(run, i); break;
      case Kind::activation: forward_activation(run, i); break;
      case Kind::mean: mean_forward(forward_pass_of(run, op)); break;
      case Kind::sum:
      case Kind::copy: forward_copy(run, op); break;
      case Kind::pick: forward_pick(run, op); break;
      case Kind::gru: forward_gru(run, op); break;
      case Kind::attention: forward_attention(run, op); break;
      case Kind::layer_norm:
      case Kind::gelu: forward_rows(run, op); break;
      case Kind::table: forward_table(run, op); break;
      case Kind::dropout: drop_rows(run, op, op.in.value, op.out, false); break;
    }
  }
}

// A packed matrix of `taps` times `inputs` rows and `outputs` columns.
struct Matrix {
  Index taps, inputs, outputs;
};

// Columns [col, col + width) of the transposed kernel with its taps reversed, packed as one panel of depth taps * outputs: the factor
// between the gradient of the output and that of the input.
void transpose_panel(const Matrix& m, const float* weight, Index col, Index width, float* to) {
  for (Index tap = 0; tap < m.taps; tap++)
    for_blocks(m.outputs, [&](auto vectors, Index out) {
      constexpr Index V = decltype(vectors)::value;
      const float* from = weight + out * m.taps * m.inputs + ((m.taps - 1 - tap) * m.inputs + col) * V * LANES;
      float* rows = to + (tap * m.outputs + out) * width;
      for (Index v = 0; v < V; v++)
        for (Index c = 0; c < width; c += LANES)
          transpose_square(from + c * V * LANES + v * LANES, V * LANES, rows + v * LANES * width + c, width);
    });
}

// Number of rows whose gradients an outer product takes at a time: few enough for the cache.
constexpr Index OUTER_ROWS = 128;

void backward_product(const Run& run, const Op& op, bool train_weight, bool train_bias, bool move_inputs) {
  const View& in = op.in.value;
  const float *x = run.at(in) + op.start, *d = run.at(op.grad);
  float* gradient = run.slot(slot_gradient);
  const Rows rows(op.out_rows, op.out_width, run.batch);
  const Index d_row = step(op.out_rows, op.grad), at_once = OUTER_ROWS > rows.lines.width ? OUTER_ROWS / rows.lines.width : 1;
  if (train_weight)
    for (Index n = 0; n < rows.parts; n++)
      evenly(rows.lines.lines, at_once, [&](Index l, int lines) {
        multiply_outer(x + n * in.sample + l * window_line(op), window_line(op), window_row(op), op.runs,
                       d + n * op.grad.sample + l * op.grad.line, op.grad.line, d_row, {lines, rows.lines.width}, gradient + op.weight,
                       op.out_stride, n > 0 || l > 0);
      });
  if (train_bias) {
    if (op.bias_cancels)
      memset(gradient + op.bias, 0, sizeof(float) * op.out_stride);
    else
      sum_rows(d, op.grad.sample, rows.parts, op.grad.line, d_row, rows.lines, op.out_stride, gradient + op.bias);
  }
  if (!move_inputs) return;
  const View& out = op.in.gradient;
  const Rows in_rows(op.in_rows, op.in_width, run.batch);
  float* panel = run.workspace + run.plan.transposed;
  const float* first = d + op.back_start;
  // Rows of the output's gradient are dense here: a stride of the convolution stands as zero rows between them.
  const Index row = op.in_rows == 1 ? op.grad.sample : op.out_stride, line = op.grad.line / op.stride_lines;
  for (Index col = 0; col < op.in_stride; col += PANEL) {
    const Index width = op.in_stride - col < PANEL ? op.in_stride - col : PANEL;
    transpose_panel({op.taps, op.in_stride, op.out_stride}, run.weights() + op.weight, col, width, panel);
    for (Index n = 0; n < in_rows.parts; n++)
      for (Index l = 0; l < in_rows.lines.lines; l++) {
        float* to = run.at(out) + n * out.sample + l * out.line + col;
        const Index to_row = step(op.in_rows, out);
        multiply(first + n * op.grad.sample + l * line, row, op.back_runs, panel, width, to, to_row, op.in.adds ? to : nullptr, to_row,
                 in_rows.lines.width);
      }
  }
}

void backward_copy(const Run& run, const Op& op, const Input& input) {
  const View &g = op.grad, &y = input.gradient;
  if (y.per_sample == g.per_sample) return;  // they share a buffer
  for (Index n = 0; n < run.batch; n++) {
    float* to = run.at(y) + n * y.sample;
    copy_rows(run.at(g) + n * g.sample, g.line, g.row, input.adds ? to : nullptr, y.line, y.row, to, y.line, y.row,
              {op.out_rows / op.out_width, op.out_width}, op.out_stride);
  }
}

void backward_pick(const Run& run, const Op& op) {
  const View &g = op.grad, &to = op.in.gradient;
  for (Index n = 0; n < run.batch; n++)
    for (Index l = 0; l < op.in_rows; l++) {
      float* row = run.at(to) + n * to.sample + l * to.row;
      const float* d = run.at(g) + n * g.sample;
      for (Index c = 0; c < op.out_stride; c += LANES) {
        const Vec moved = l == op.row ? load(d + c) : Vec{};
        store(row + c, op.in.adds ? load(row + c) + moved : moved);
      }
    }
}

void backward_gru(const Run& run, const Op& op, bool train_weight, bool train_bias) {
  const View &x = op.in.gradient, &y = op.out, &g = op.grad, &gates = op.gates, &states = op.states;
  const Index width = op.out_stride, zero = 0;
  // Of every example, the gradient by u at each time, and in front of these the one by h.
  float *d_h = run.at(states), *d_u = d_h + width, *transposed = run.workspace + run.plan.transposed;
  for (Index col = 0; col < width; col += PANEL)
    transpose_panel({1, width, 3 * width}, run.weights() + op.weight, col, width - col < PANEL ? width - col : PANEL,
                    transposed + col * 3 * width);
  for (Index t = op.in_rows - 1; t >= 0; t--) {
    for (Index n = 0; n < run.batch; n++)
      gates_backward(run.at(gates) + n * gates.sample + t * gates.row, t ? run.at(y) + n * y.sample + (t - 1) * y.row : nullptr,
                     run.at(g) + n * g.sample + t * g.row, d_h + n * states.sample, run.at(x) + n * x.sample + t * x.row,
                     d_u + n * states.sample + t * 3 * width, width, t == op.in_rows - 1);
    multiply(d_u + t * 3 * width, states.sample, {&zero, 1, 3 * width}, transposed, width, d_h, states.sample, d_h, states.sample, run.batch);
  }
  float* gradient = run.slot(slot_gradient);
  if (train_weight)
    for (Index n = 0; n < run.batch; n++)
      multiply_outer(run.at(y) + n * y.sample, 0, y.row, {&zero, 1, width}, d_u + n * states.sample + 3 * width, 0, 3 * width,
                     {1, op.in_rows - 1}, gradient + op.weight, 3 * width, n > 0);
  if (train_bias) sum_rows(d_u, states.sample, run.batch, 0, 3 * width, {1, op.in_rows}, 3 * width, gradient + op.bias);
}

// Tensors that training changes, and the lowest op that has one: below it nothing needs a gradient.
struct Trained {
  const bool* moves;
  int lowest;
};

void backward(const Run& run, const Trained& trained) {
  for (int i = run.plan.num_ops - 1; i >= trained.lowest; i--) {
    const Op& op = run.plan.ops[i];
    const bool move_inputs = op.in.producer >= trained.lowest;
    ActivationPass s = {};
    if (op.kind == Kind::activation || op.kind == Kind::mean) {
      const View& out = op.in.gradient;
      s = pass_of(run, op);
      s.g = run.at(op.grad), s.g_sample = op.grad.sample, s.move_inputs = move_inputs, s.adds = op.in.adds;
      if (move_inputs) s.y = run.at(out), s.y_sample = out.sample, s.y_line = out.line, s.y_row = out.row;
    }
    switch (op.kind) {
      case Kind::product: backward_product(run, op, trained.moves[2 * i], trained.moves[2 * i + 1], move_inputs); break;
      case Kind::activation: activation(s, false); break;
      case Kind::mean:
        if (move_inputs) mean_backward(s);
        break;
      case Kind::sum:
      case Kind::copy:
        if (move_inputs) backward_copy(run, op, op.in);
        if (op.kind == Kind::sum && op.other.producer >= trained.lowest) backward_copy(run, op, op.other);
        break;
      case Kind::pick:
        if (move_inputs) backward_pick(run, op);
        break;
      case Kind::gru: backward_gru(run, op, trained.moves[2 * i], trained.moves[2 * i + 1]); break;
      case Kind::attention:
        if (move_inputs) backward_attention(run, op);
        break;
      case Kind::layer_norm:
      case Kind::gelu: backward_rows(run, op, move_inputs); break;
      case Kind::table: backward_table(run, op, trained.moves[2 * i], move_inputs); break;
      case Kind::dropout:
        if (move_inputs) drop_rows(run, op, op.grad, op.in.gradient, op.in.adds);
        break;
    }
  }
}

// One line (channels, width) of an example, whose channels are `plane` apart, to channels-last rows, each channel times its factor. If a
// row is one vector, squares are transposed in registers. Such a row also writes beyond its end, where the next rows overwrite the values;
// therefore the last rows are copied value by value.
void gather_line(const Plan& plan, const float* from, Index plane, float* to) {
  const Index stride = plan.in_stride, room = plan.width * stride - LANES;
  const Index whole = plan.channels <= LANES && room >= 0 ? (room / stride + 1) / LANES * LANES : 0;
  const auto factor = [&](Index c) { return plan.factors ? plan.factors[c] : 1.0f; };
  for (Index t = 0; t < whole; t += LANES) {
    Square s = {};
    for (Index c = 0; c < plan.channels; c++) s.row[c] = load(from + c * plane + t) * factor(c);
    transpose(s);
    for (int i = 0; i < LANES; i++) store(to + (t + i) * stride, s.row[i]);
  }
  for (Index c = 0; c < plan.channels; c++)
    for (Index t = whole; t < plan.width; t++) to[t * stride + c] = from[c * plane + t] * factor(c);
}

// Number of floats of an example of the call.
inline Index example_size(const Plan& plan) { return plan.channels * plan.lines * plan.width; }

void gather_example(const Run& run, Index n, const float* from) {
  const Plan& plan = run.plan;
  float* to = run.at(plan.input) + n * plan.input.sample;
  for (Index l = 0; l < plan.lines; l++) gather_line(plan, from + l * plan.width, plan.lines * plan.width, to + l * plan.input.line);
}

void gather(const Run& run, const float* x, const int64_t* chosen) {
  for (Index n = 0; n < run.batch; n++) gather_example(run, n, x + chosen[n] * example_size(run.plan));
}

// Copies between the flat vector and the packed parameters. Squares of a matrix are transposed in registers: value by value, every store
// (or load) would meet another cache line.
template <bool PACKING>
void copy_values(const Plan& plan, float* flat, float* packed) {
  const auto copy = [&](Index i) { PACKING ? void(packed[plan.place[i]] = flat[i]) : void(flat[i] = packed[plan.place[i]]); };
  for (Index t = 0; t < plan.num_tensors; t++) {
    const Tensor& tensor = plan.tensors[t];
    const Index blocks = tensor.outputs / LANES, whole = tensor.inner / LANES * LANES;
    for (Index block = 0; block < blocks; block++) {
      const Index begin = tensor.begin + block * LANES * tensor.inner;
      for (Index k = 0; k < whole; k += LANES) {
        const int32_t* place = plan.place + begin + k;
        Square s;
        for (int i = 0; i < LANES; i++) s.row[i] = load(PACKING ? flat + begin + i * tensor.inner + k : packed + place[i]);
        transpose(s);
        for (int i = 0; i < LANES; i++) store(PACKING ? packed + place[i] : flat + begin + i * tensor.inner + k, s.row[i]);
      }
      for (Index i = 0; i < LANES; i++)
        for (Index k = whole; k < tensor.inner; k++) copy(begin + i * tensor.inner + k);
    }
    const Index end = tensor.begin + (tensor.outputs ? tensor.outputs : 1) * tensor.inner;
    for (Index i = tensor.begin + blocks * LANES * tensor.inner; i < end; i++) copy(i);
  }
}

void pack(const Plan& plan, const float* flat, float* packed) {
  memset(packed, 0, sizeof(float) * plan.packed_size);
  copy_values<true>(plan, const_cast<float*>(flat), packed);
}

void unpack(const Plan& plan, float* packed, float* flat) { copy_values<false>(plan, flat, packed); }

void pack_weights(const Run& run, const float* flat) {
  pack(run.plan, flat, run.weights());
  for (Index i = 0; i < run.plan.num_constants; i++) run.weights()[run.plan.constants[i]] = run.plan.constant_values[i];
}

// v <- m * v + g; w <- w - lr * v, with g <- scale * g if it is not null; scale 0 leaves v and w unchanged.
void descend(const Run& run, const TrainCall& call, const Range& range) {
  float *w = run.weights() + range.begin, *v = run.slot(slot_velocity) + range.begin;
  const float* g = run.slot(slot_gradient) + range.begin;
  const float* scale = run.slot(slot_scale) + range.begin;
  const Vec m = broadcast(call.momentum_factor), lr = broadcast(call.lr);
  for (Index i = 0; i < range.size; i += LANES) {
    Vec direction = load(g + i), weight = load(w + i), velocity = load(v + i);
    if (call.scale) direction *= load(scale + i);
    Vec moved = m * velocity + direction, next = weight - lr * moved;
    if (call.scale) {
      const IVec frozen = load(scale + i) == Vec{};
      moved = frozen ? velocity : moved;
      next = frozen ? weight : next;
    }
    store(v + i, moved);
    store(w + i, next);
  }
}

int check_examples(const Plan& plan, const int64_t* chosen, Index count, const int64_t* y, Index num_examples) {
  for (Index i = 0; i < count; i++) {
    if (chosen[i] < 0 || chosen[i] >= num_examples) return bad_index;
    if (y && (y[chosen[i]] < 0 || y[chosen[i]] >= plan.classes)) return bad_label;
  }
  return ok;
}

bool can_normalise(const Plan& plan, Index batch) {
  for (int i = 0; i < plan.num_ops; i++)
    if (plan.ops[i].norm && batch * plan.ops[i].in_rows == 1) return false;
  return true;
}

int train_network(const Plan& plan, TrainCall& call) {
  Run run = {plan, call.workspace, call.capacity, 0, true, call.move_statistics != 0, call.drawn, 0};
  call.loss_sum = 0, call.num_correct = 0;
  for (Index b = 0; b < call.num_batches; b++) {
    const Index size = call.bounds[b + 1] - call.bounds[b];
    if (call.bounds[0] != 0 || size < 1 || size > call.capacity) return bad_bounds;
    if (!can_normalise(plan, size)) return one_value;
  }
  if (!call.num_batches) return ok;
  if (const int wrong = check_examples(plan, call.order, call.bounds[call.num_batches], call.y, call.num_examples)) return wrong;
  pack_weights(run, call.flat);
  if (call.momentum)
    pack(plan, call.momentum, run.slot(slot_velocity));
  else
    memset(run.slot(slot_velocity), 0, sizeof(float) * plan.packed_size);
  if (call.scale) pack(plan, call.scale, run.slot(slot_scale));
  bool moves[2 * MAX_OPS] = {};
  Trained trained = {moves, plan.num_ops};
  for (int i = 2 * plan.num_ops - 1; i >= 0; i--) {
    const Range& range = plan.ranges[i];
    const float* scale = run.slot(slot_scale) + range.begin;
    moves[i] = range.size > 0 && !call.scale;
    for (Index k = 0; k < range.size && !moves[i]; k++) moves[i] = scale[k] != 0;
    if (moves[i]) trained.lowest = i / 2;
  }
  for (Index b = 0; b < call.num_batches; b++) {
    const int64_t* chosen = call.order + call.bounds[b];
    run.batch = call.bounds[b + 1] - call.bounds[b], run.first = call.bounds[b];
    gather(run, call.x, chosen);
    forward(run);
    const View& last = plan.logits_gradient;
    for (Index n = 0; n < run.batch; n++) {
      bool correct;
      const float* logits = run.at(plan.logits) + n * plan.logits.sample;
      float* gradient = run.at(last) + n * last.sample;
      call.loss_sum += cross_entropy(logits, plan.classes, call.y[chosen[n]], 1.0f / float(run.batch), gradient, nullptr, correct);
      call.num_correct += correct;
    }
    backward(run, trained);
    for (int i = 0; i < 2 * plan.num_ops; i++)
      if (moves[i]) descend(run, call, plan.ranges[i]);
  }
  unpack(plan, run.weights(), call.flat);
  if (call.momentum) unpack(plan, run.slot(slot_velocity), call.momentum);
  return ok;
}

int evaluate_network(const Plan& plan, EvaluateCall& call) {
  Run run = {plan, call.workspace, call.capacity, 0, false, false, nullptr, 0};
  call.loss_sum = 0, call.num_correct = 0;
  if (const int wrong = check_examples(plan, call.order, call.num_chosen, call.y, call.num_examples)) return wrong;
  pack_weights(run, call.flat);
  for (Index first = 0; first < call.num_chosen; first += call.capacity) {
    const int64_t* chosen = call.order + first;
    run.batch = call.num_chosen - first < call.capacity ? call.num_chosen - first : call.capacity;
    gather(run, call.x, chosen);
    forward(run);
    for (Index n = 0; n < run.batch; n++) {
      bool correct;
      float* probabilities = call.probabilities ? call.probabilities + (first + n) * plan.classes : nullptr;
      const float* logits = run.at(plan.logits) + n * plan.logits.sample;
      call.loss_sum += cross_entropy(logits, plan.classes, call.y ? call.y[chosen[n]] : -1, 0, nullptr, probabilities, correct);
      call.num_correct += correct;
    }
  }
  return ok;
}

int forward_network(const Plan& plan, const ForwardCall& call) {
  const Run run = {plan, call.workspace, call.capacity, call.batch, call.training != 0, true, nullptr, 0};
  if (call.batch < 1 || call.batch > call.capacity) return bad_bounds;
  if (run.training && !can_normalise(plan, call.batch)) return one_value;
  pack_weights(run, call.flat);
  for (Index n = 0; n < run.batch; n++) gather_example(run, n, call.x + n * example_size(plan));
  forward(run);
  for (Index n = 0; n < run.batch; n++)
    for (Index i = 0; i < plan.num_outputs; i++)
      call.y[n * plan.num_outputs + i] = run.at(plan.logits)[n * plan.logits.sample + plan.outputs[i]];
  if (run.training) unpack(plan, run.weights(), call.flat);
  return ok;
}

int backward_network(const Plan& plan, const BackwardCall& call) {
  const Run run = {plan, call.workspace, call.capacity, call.batch, true, false, nullptr, 0};
  const View& last = plan.logits_gradient;
  memset(run.at(last) - last.lead, 0, sizeof(float) * run.batch * last.sample);
  for (Index n = 0; n < run.batch; n++)
    for (Index i = 0; i < plan.num_outputs; i++)
      run.at(last)[n * last.sample + plan.outputs[i]] = call.d_y[n * plan.num_outputs + i];
  bool moves[2 * MAX_OPS];
  Trained trained = {moves, plan.num_ops};
  for (int i = 2 * plan.num_ops - 1; i >= 0; i--) {
    moves[i] = plan.ranges[i].size > 0;
    if (moves[i]) trained.lowest = i / 2;
  }
  backward(run, trained);
  unpack(plan, run.slot(slot_gradient), call.gradient);
  return ok;
}

}  // namespace

extern const Engine engine;
const Engine engine = {LANES, PANEL, train_network, evaluate_network, forward_network, backward_network, weighted_sum};

}  // namespace SHOAL_TARGET
}  // namespace shoal
