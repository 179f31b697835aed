#include "program.h"

#include <executorch/extension/data_loader/buffer_data_loader.h>
#include <executorch/extension/data_loader/mmap_data_loader.h>
#include <executorch/extension/module/module.h>
#include <executorch/extension/threadpool/threadpool_guard.h>
#include <executorch/runtime/platform/platform.h>
#include <executorch/runtime/platform/runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace executorch::extension {
int64_t get_thread_count();
bool set_thread_num(int64_t);
} // namespace executorch::extension

namespace {

using executorch::aten::ScalarType;
using executorch::aten::Tensor;
using executorch::aten::TensorImpl;
using executorch::extension::Module;
using executorch::extension::threadpool::NoThreadPoolGuard;
using executorch::runtime::Error;
using executorch::runtime::EValue;
using executorch::runtime::TensorInfo;

constexpr const char* kMethod = "forward";
bool one_thread = true;

// Errors that the runtime logged last on this thread: its codes alone do not name an operator or a size.
thread_local std::string runtime_errors;

void keep_message(
    et_timestamp_t, et_pal_log_level_t level, const char*, const char*, size_t, const char* message, size_t length) {
  if ((level == et_pal_log_level_t::kError || level == et_pal_log_level_t::kFatal) && runtime_errors.size() < 600) {
    runtime_errors.append(runtime_errors.empty() ? "" : "; ").append(message, std::min(length, size_t{300}));
  }
}

void prepare() {
  static const bool prepared = [] {
    executorch::runtime::runtime_init();
    return executorch::runtime::register_pal(executorch::runtime::PalImpl::create(keep_message, __FILE__));
  }();
  (void)prepared;
  runtime_errors.clear();
}

int32_t fail(Error code, const std::string& what, char* error, size_t error_size) {
  if (error != nullptr && error_size > 0) {
    std::snprintf(
        error, error_size, "%s: %s (0x%02x)%s%s", what.c_str(), executorch::runtime::to_string(code), static_cast<unsigned>(code),
        runtime_errors.empty() ? "" : ": ", runtime_errors.c_str());
  }
  return static_cast<int32_t>(code);
}

void describe(const TensorInfo& info, shoal_tensor* described) {
  described->data = nullptr;
  described->dtype = static_cast<int32_t>(info.scalar_type());
  described->rank = static_cast<int32_t>(info.sizes().size());
  std::copy(info.sizes().begin(), info.sizes().end(), described->sizes);
}

std::string shape_of(const shoal_tensor& tensor) {
  std::string text = "(";
  for (int32_t i = 0; i < std::min<int32_t>(tensor.rank, SHOAL_MAX_RANK); ++i) {
    text += (i ? ", " : "") + std::to_string(tensor.sizes[i]);
  }
  return text + ")";
}

// Returns the fault of an input, or nothing. The runtime judges sizes below the greatest: it knows the sizes that may change.
std::optional<std::string> misfit(const shoal_tensor& actual, const shoal_tensor& expected) {
  if (actual.dtype != expected.dtype) {
    return "data type " + std::to_string(actual.dtype) + ", expected " + std::to_string(expected.dtype);
  }
  bool fits = actual.rank == expected.rank;
  for (int32_t i = 0; fits && i < actual.rank; ++i) {
    fits = actual.sizes[i] >= 0 && actual.sizes[i] <= expected.sizes[i];
  }
  if (!fits) {
    return "shape " + shape_of(actual) + ", expected at most " + shape_of(expected);
  }
  return actual.data == nullptr ? std::optional<std::string>("no data") : std::nullopt;
}

} // namespace

struct shoal_program {
  std::unique_ptr<Module> module;
  std::vector<shoal_tensor> inputs, outputs;
};

namespace {

shoal_program* load(
    executorch::runtime::Result<std::unique_ptr<executorch::runtime::DataLoader>> loader, char* error, size_t error_size) {
  if (!loader.ok()) {
    fail(loader.error(), "the program cannot be read", error, error_size);
    return nullptr;
  }
  auto program = std::make_unique<shoal_program>();
  program->module = std::make_unique<Module>(std::move(*loader));
  std::optional<NoThreadPoolGuard> alone;
  if (one_thread) {
    alone.emplace();
  }
  if (auto code = program->module->load(executorch::runtime::Program::Verification::InternalConsistency); code != Error::Ok) {
    fail(code, "not a program of this runtime", error, error_size);
    return nullptr;
  }
  if (auto code = program->module->load_method(kMethod); code != Error::Ok) {
    fail(code, "the program cannot be loaded", error, error_size);
    return nullptr;
  }
  auto meta = program->module->method_meta(kMethod);
  if (!meta.ok()) {
    fail(meta.error(), "the program does not describe itself", error, error_size);
    return nullptr;
  }
  for (bool output : {false, true}) {
    const size_t count = output ? meta->num_outputs() : meta->num_inputs();
    for (size_t i = 0; i < count; ++i) {
      auto info = output ? meta->output_tensor_meta(i) : meta->input_tensor_meta(i);
      if (!info.ok() || info->sizes().size() > SHOAL_MAX_RANK) {
        fail(
            info.ok() ? Error::NotSupported : info.error(),
            std::string(output ? "output " : "input ") + std::to_string(i) + " must be a tensor of at most 8 dimensions", error, error_size);
        return nullptr;
      }
      describe(*info, &(output ? program->outputs : program->inputs).emplace_back());
    }
  }
  return program.release();
}

} // namespace

extern "C" {

__attribute__((visibility("default"))) int32_t shoal_program_interface(void) {
  return SHOAL_PROGRAM_INTERFACE;
}

__attribute__((visibility("default"))) const char* shoal_executorch_version(void) {
  return SHOAL_EXECUTORCH_VERSION;
}

__attribute__((visibility("default"))) void shoal_set_threads(int32_t threads) {
  one_thread = threads <= 1;
  if (!one_thread) {
    executorch::extension::set_thread_num(threads);
  }
}

__attribute__((visibility("default"))) shoal_program* shoal_program_load(
    const void* bytes, size_t num_bytes, char* error, size_t error_size) {
  prepare();
  return load(std::unique_ptr<executorch::runtime::DataLoader>(new executorch::extension::BufferDataLoader(bytes, num_bytes)), error, error_size);
}

__attribute__((visibility("default"))) shoal_program* shoal_program_open(const char* path, char* error, size_t error_size) {
  prepare();
  using executorch::extension::MmapDataLoader;
  auto mapped = MmapDataLoader::from(path, MmapDataLoader::MlockConfig::NoMlock);
  if (!mapped.ok()) {
    return load(mapped.error(), error, error_size);
  }
  return load(std::unique_ptr<executorch::runtime::DataLoader>(new MmapDataLoader(std::move(*mapped))), error, error_size);
}

__attribute__((visibility("default"))) void shoal_program_free(shoal_program* program) {
  delete program;
}

__attribute__((visibility("default"))) int32_t shoal_program_num_inputs(const shoal_program* program) {
  return static_cast<int32_t>(program->inputs.size());
}

__attribute__((visibility("default"))) int32_t shoal_program_num_outputs(const shoal_program* program) {
  return static_cast<int32_t>(program->outputs.size());
}

__attribute__((visibility("default"))) int32_t shoal_program_describe_input(
    const shoal_program* program, int32_t index, shoal_tensor* described) {
  if (index < 0 || index >= shoal_program_num_inputs(program)) {
    return static_cast<int32_t>(Error::InvalidArgument);
  }
  *described = program->inputs[index];
  return 0;
}

__attribute__((visibility("default"))) int32_t shoal_program_describe_output(
    const shoal_program* program, int32_t index, shoal_tensor* described) {
  if (index < 0 || index >= shoal_program_num_outputs(program)) {
    return static_cast<int32_t>(Error::InvalidArgument);
  }
  *described = program->outputs[index];
  return 0;
}

__attribute__((visibility("default"))) int32_t shoal_program_run(
    shoal_program* program, const shoal_tensor* inputs, int32_t num_inputs, shoal_tensor* outputs, int32_t num_outputs, char* error,
    size_t error_size) {
  prepare();
  const size_t count = program->inputs.size();
  if (num_inputs != shoal_program_num_inputs(program) || num_outputs != shoal_program_num_outputs(program)) {
    return fail(
        Error::InvalidArgument,
        std::to_string(num_inputs) + " inputs and " + std::to_string(num_outputs) + " outputs, expected " + std::to_string(count) + " and " +
            std::to_string(program->outputs.size()),
        error, error_size);
  }
  static TensorImpl::DimOrderType order[SHOAL_MAX_RANK] = {0, 1, 2, 3, 4, 5, 6, 7};
  std::vector<std::vector<TensorImpl::SizesType>> sizes(count);
  std::vector<std::vector<TensorImpl::StridesType>> strides(count);
  std::vector<TensorImpl> tensors;
  tensors.reserve(count);
  std::vector<EValue> values;
  values.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    const shoal_tensor& tensor = inputs[i];
    if (auto wrong = misfit(tensor, program->inputs[i])) {
      return fail(Error::InvalidArgument, "input " + std::to_string(i) + " has " + *wrong, error, error_size);
    }
    sizes[i].assign(tensor.sizes, tensor.sizes + tensor.rank);
    strides[i].assign(tensor.rank, 1);
    for (int32_t d = tensor.rank - 2; d >= 0; --d) {
      strides[i][d] = strides[i][d + 1] * sizes[i][d + 1];
    }
    tensors.emplace_back(
        static_cast<ScalarType>(tensor.dtype), tensor.rank, sizes[i].data(), tensor.data, order, strides[i].data(),
        executorch::aten::TensorShapeDynamism::STATIC);
    values.emplace_back(Tensor(&tensors.back()));
  }
  std::optional<NoThreadPoolGuard> alone;
  if (one_thread) {
    alone.emplace();
  }
  auto results = program->module->execute(kMethod, values);
  if (!results.ok()) {
    return fail(results.error(), "the program failed", error, error_size);
  }
  for (size_t i = 0; i < program->outputs.size(); ++i) {
    const Tensor tensor = (*results)[i].toTensor();
    outputs[i].data = tensor.mutable_data_ptr();
    outputs[i].dtype = static_cast<int32_t>(tensor.scalar_type());
    outputs[i].rank = static_cast<int32_t>(tensor.dim());
    std::copy(tensor.sizes().begin(), tensor.sizes().end(), outputs[i].sizes);
  }
  return 0;
}

} // extern "C"
