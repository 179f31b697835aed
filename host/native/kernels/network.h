// Types that the translation units share: the layout of a network in memory, and the arguments of a call.
//
// Everything here is plain data. The engines are compiled once per instruction set; a template or inline function with external linkage
// in this header could be merged by the linker into one copy compiled for the wrong set, so there are none.
//
// Layout. An activation is channels-last: for every example lines of `width` rows (a time window has one line, whose rows are its samples;
// an image has its lines, whose rows are its pixels) of `stride` floats (channels, padded to whole vectors with zeros). With the channels
// innermost, the input of a convolution's window is a few contiguous runs of floats, one for each line of its kernel, or one for each tap if
// it is dilated: a convolution is a matrix product whose left factor is read in place. Zero rows and lines around an example are the
// convolution's padding; they are written once, when the workspace is created, and never again.
#pragma once
#include <cstddef>
#include <cstdint>

namespace shoal {

typedef int64_t Index;

// Rows of all examples of a batch: row r of line l of example n begins at
// fixed + per_sample * batch capacity + lead + n * sample + l * line + r * row.
struct View {
  Index fixed, per_sample, lead;
  Index sample, line, row;
};

// Input of one window of a convolution: `count` runs of `length` floats, which begin at these offsets from its first value.
struct Runs {
  const Index* offsets;
  Index count, length;
};

enum class Kind : int {
  product,     // a convolution or Linear: rows times a packed matrix, plus a bias
  activation,  // any of BatchNorm, ReLU and MaxPool, in one pass
  mean,        // AvgPool
  sum,         // of two inputs
  copy,        // of the input, in a buffer of its own
  pick,        // one row of the input
  gru,         // gated recurrent units over the rows: the input is the product of x for their three gates
  attention,   // of the rows of an example to each other: the input is the product of x for queries, keys and values
  layer_norm,  // of every row
  gelu,        // likewise
  table,       // rows of parameters, in front of those of the input or added to them
  dropout,     // of the input, by random numbers that are arguments of the call
};

// Value that an op reads, and the gradient by it.
struct Input {
  View value, gradient;
  int producer;   // op that computes it, -1 for the network's input
  bool adds;      // true if another op has already written its gradient
};

struct Op {
  Kind kind;
  Index in_rows, in_width, out_rows, out_width;  // rows per example, and how many of them are a line
  Index in_stride, out_stride;                   // floats of a row
  Input in, other;                               // the second one of a sum
  View out;                                      // its output
  View grad;                                     // the gradient of its output; of a sum, perhaps of its inputs too: no op changes its own, and
                                                 // the first op to write one writes whole rows

  // product
  Index stride_lines, stride;   // rows between neighbouring windows
  Index taps, depth;            // depth = taps * in_stride: rows of the packed matrix
  Index start, back_start;      // from the first row to the start of the first window: of the input, and of the output's gradient
  Runs runs, back_runs;         // of the input, and of the output's gradient
  Index first_offset;           // position of their offsets among the plan's
  Index weight, bias;           // in the packed parameters; bias -1 if there is none
  bool bias_cancels;            // a BatchNorm follows, which subtracts every constant again

  // activation, mean
  bool norm, relu;
  Index pool_lines, pool;                  // number of lines and columns that become one row
  Index row;                               // of pick
  Index heads, values;                     // of attention; the values of a row that are no padding
  View gates, states;                      // of gru: for the backward pass, see recurrent.h
  Index table_rows;                        // of table; `row` of them are in front of the input's rows
  // Of dropout and attention: index of its random numbers among the call's, -1 for none, and their number per example. Of dropout: distance
  // from the numbers of a row to those of the next, and from the number of a value to the next one's; value i of a row is at position[i].
  int drawn;
  Index drawn_size, drawn_row, drawn_value;
  const Index* position;
  bool dense;                              // the values of a row follow each other, and so do their random numbers
  float share;                             // share of the values that are dropped
  Index gamma, beta, running_mean, running_var;  // in the packed parameters
  Index saved;                             // in the workspace: the batch's mean and 1 / standard deviation
  float eps, momentum;
};

// Packed parameters that training may change.
struct Range {
  Index begin, size;
};

// A tensor in the flat vector: a matrix of `outputs` rows of `inner` values, or a vector of `inner` values (outputs 0). Every block of
// whole vectors of a matrix's outputs is contiguous among the packed parameters.
struct Tensor {
  Index begin, outputs, inner;
};

struct Plan {
  Index channels, lines, width, classes;
  Index in_stride;         // floats of a row of the input
  View input;
  const float* factors;    // (channels,) factors of the input, or null
  const Op* ops;
  int num_ops;
  const Range* ranges;     // by op: 2 * i the first and 2 * i + 1 the second tensor of op i, size 0 if there is none
  View logits, logits_gradient;  // or the result of the last layer, if it is no classifier
  const Index* outputs;    // (num_outputs,) position of a value of the last op's result among an example's rows
  Index num_outputs;
  const int32_t* place;    // (flat_size,) position of a value of the flat vector among the packed parameters
  Index flat_size, packed_size;
  const Tensor* tensors;
  Index num_tensors;
  const Index* constants;  // packed parameters that never change, and their values: ones for the factors of a BatchNorm without any
  const float* constant_values;
  Index num_constants;
  // Of the workspace, in floats. It begins with the packed vectors (Slot), `packed_size` each.
  Index transposed, moments;
  Index fixed_size, floats_per_sample;
};

constexpr int MAX_OPS = 256;

enum Status : int { ok = 0, bad_label = 1, bad_index = 2, one_value = 3, bad_bounds = 4 };

// All vectors are flat_size long, or null if they are not used.
struct TrainCall {
  float *flat, *momentum;
  const float* scale;
  const float* x;
  const int64_t *y, *order, *bounds;
  int64_t num_examples, num_batches, capacity;
  float lr, momentum_factor;
  int32_t move_statistics;
  float* workspace;
  const float* const* drawn;  // of each layer that drops, random numbers in [0, 1) for each entry of `order`
  double loss_sum;
  int64_t num_correct;
};

struct EvaluateCall {
  const float* flat;
  const float* x;
  const int64_t *y, *order;
  int64_t num_examples, num_chosen, capacity;
  float* workspace;
  float* probabilities;  // (num_chosen, classes) or null
  double loss_sum;
  int64_t num_correct;
};

// One batch through the network. The values that `BackwardCall` needs stay in the workspace.
struct ForwardCall {
  float* flat;     // its running statistics change in training
  const float* x;  // (batch, channels, *sizes)
  int64_t batch, capacity;
  int32_t training;
  float* workspace;
  float* y;        // (batch, num_outputs)
};

struct BackwardCall {
  const float* d_y;  // (batch, num_outputs): the gradient by the result
  int64_t batch, capacity;
  float* workspace;
  float* gradient;   // (flat_size,) by the parameters; running statistics have none
};

struct Engine {
  int lanes, panel;  // floats of a vector, and of a full panel of a packed matrix
  int (*train)(const Plan&, TrainCall&);
  int (*evaluate)(const Plan&, EvaluateCall&);
  int (*forward)(const Plan&, const ForwardCall&);
  int (*backward)(const Plan&, const BackwardCall&);
  void (*weighted_sum)(const float* const* rows, const float* weights, Index count, Index width, double* total);
};

// Content of the workspace in the layout of the packed parameters.
enum Slot : int { slot_weights, slot_velocity, slot_gradient, slot_scale, num_slots };

}  // namespace shoal
