// shoal-train PROGRAM STATE OUT STEPS INPUTS WORD...: trains with a step's program alone, as firmware would, and prints the duration of a step.
//
// STATE contains the bytes of every input except the batch, in order; INPUTS those of the batches, one after the other. There is one WORD for
// each input: `state:K` if output K is its next value, `fixed`, or `batch:N` for N examples.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "program.h"

namespace {

[[noreturn]] void stop(const std::string& text) {
  std::fprintf(stderr, "error: %s\n", text.c_str());
  std::exit(2);
}

size_t width(int32_t dtype) {
  return dtype == 4 ? 8 : dtype == 6 || dtype == 3 ? 4 : 1;
}

} // namespace

int main(int argc, char** argv) {
  if (argc < 7) {
    stop("usage: shoal-train PROGRAM STATE OUT STEPS INPUTS WORD...");
  }
  char error[1024];
  shoal_program* program = shoal_program_open(argv[1], error, sizeof error);
  if (program == nullptr) {
    stop(error);
  }
  const int count = shoal_program_num_inputs(program), steps = std::atoi(argv[4]);
  if (argc != 6 + count) {
    stop("the program has " + std::to_string(count) + " inputs; give one word for each");
  }
  std::ifstream state(argv[2], std::ios::binary), batches(argv[5], std::ios::binary);
  std::vector<shoal_tensor> inputs(count), outputs(shoal_program_num_outputs(program));
  std::vector<std::vector<char>> values(count);
  std::vector<int> following(count, -1);
  std::vector<bool> drawn(count, false);
  for (int i = 0; i < count; ++i) {
    const std::string word = argv[6 + i];
    shoal_program_describe_input(program, i, &inputs[i]);
    if (word.rfind("batch:", 0) == 0) {
      drawn[i] = true;
      inputs[i].sizes[0] = std::atoi(word.c_str() + 6);
    } else if (word.rfind("state:", 0) == 0) {
      following[i] = std::atoi(word.c_str() + 6);
    }
    size_t bytes = width(inputs[i].dtype);
    for (int d = 0; d < inputs[i].rank; ++d) {
      bytes *= inputs[i].sizes[d];
    }
    values[i].resize(bytes);
    inputs[i].data = values[i].data();
    if (!drawn[i] && !state.read(values[i].data(), bytes)) {
      stop("the file STATE is too short");
    }
  }
  double seconds = 0;
  for (int step = 0; step < steps; ++step) {
    for (int i = 0; i < count; ++i) {
      if (drawn[i] && !batches.read(values[i].data(), values[i].size())) {
        stop("the file INPUTS is too short");
      }
    }
    const auto began = std::chrono::steady_clock::now();
    if (shoal_program_run(program, inputs.data(), count, outputs.data(), static_cast<int32_t>(outputs.size()), error, sizeof error)) {
      stop(error);
    }
    for (int i = 0; i < count; ++i) {
      if (following[i] >= 0) {
        std::memcpy(values[i].data(), outputs[following[i]].data, values[i].size());
      }
    }
    seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  }
  std::ofstream out(argv[3], std::ios::binary);
  for (int i = 0; i < count; ++i) {
    if (following[i] >= 0) {
      out.write(values[i].data(), values[i].size());
    }
  }
  std::string line, most = "VmHWM: 0 kB";
  for (std::ifstream status("/proc/self/status"); std::getline(status, line);) {
    most = line.rfind("VmHWM", 0) == 0 ? line : most;
  }
  std::printf("%.6f ms per step, %s\n", seconds * 1e3 / steps, most.c_str());
  shoal_program_free(program);
}
