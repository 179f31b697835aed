// A bundle, and the work of a plan with its programs: the verbs `train` and `evaluate`.
#pragma once

#include <chrono>
#include <cmath>
#include <functional>
#include <numeric>
#include <random>

#include "formats.h"
#include "program.h"

struct Sums {
  int64_t num_examples = 0;
  double loss_sum = 0, num_correct = 0;
  Json json() const {
    return {{"num_examples", num_examples}, {"loss_sum", loss_sum}, {"num_correct", std::llround(num_correct)}};
  }
};

inline void write_file(const std::string& path, View bytes) {
  std::ofstream file(path + ".part", std::ios::binary);
  if (!file.write(bytes.data(), bytes.size()).flush() || rename((path + ".part").c_str(), path.c_str())) {
    fail("cannot write " + path);
  }
}

// Returns the bounds of batches: a rest of less than half a batch shares evenly with the batch before it.
inline std::vector<size_t> bounds_of(size_t count, size_t batch, size_t least) {
  std::vector<size_t> bounds;
  for (size_t at = 0; at < count; at += batch) {
    bounds.push_back(at);
  }
  const size_t rest = count ? count - bounds.back() : 0;
  if (bounds.size() > 1 && rest < std::max((batch + 1) / 2, least)) {
    bounds.pop_back();
    if (batch + rest >= 2 * least) {
      bounds.push_back(bounds.back() + (batch + rest + 1) / 2);
    }
  }
  bounds.push_back(count);
  return bounds;
}

class Bundle {
 public:
  // Verifies the signature of the manifest and the hash of every file.
  Bundle(const std::string& path, View root, std::string folder) : file_(path), folder_(std::move(folder)), members_(members(file_.bytes())) {
    const View text = members_.at("manifest.json");
    if (!verifies(root, members_.at("manifest.sig"), std::string(text))) {
      fail("bundle is not signed by the root key");
    }
    manifest = Json::parse(text);
    for (const auto& [name, digest] : manifest.at("files").items()) {
      if (sha256(members_.at(name)) != digest) {
        fail("bundle: " + name + " does not have its hash");
      }
    }
  }
  ~Bundle() {
    for (auto& [graph, program] : programs_) {
      shoal_program_free(program);
    }
  }

  // Returns the initial tensors; those without a value are zero.
  Tensors initial() const {
    Tensors tensors = read_tensors(members_.at("initial.safetensors"));
    for (const auto& spec : manifest.at("tensors")) {
      const std::string key = spec.at("role").get<std::string>() + "/" + spec.at("name").get<std::string>();
      if (!tensors.count(key)) {
        const std::vector<int64_t> shape = spec.at("shape");
        const size_t width = spec.at("dtype") == "int64" ? 8 : 4;
        const size_t size = std::accumulate(shape.begin(), shape.end(), width, std::multiplies<>());
        tensors[key] = {width == 8 ? "I64" : "F32", shape, std::string(size, '\0')};
      }
    }
    return tensors;
  }

  // Returns the program of a graph, loaded at its first use from a file of its own: programs must be aligned in memory.
  shoal_program* program(const std::string& graph) {
    auto& program = programs_[graph];
    if (!program) {
      char error[1024];
      const std::string name = manifest["graphs"].at(graph).at("programs").at("executorch").at("file"), path = folder_ + "/" + name;
      write_file(path, members_.at(name));
      program = shoal_program_open(path.c_str(), error, sizeof error);
      if (!program) {
        fail(error);
      }
    }
    return program;
  }

  Json manifest;

 private:
  Mapped file_;
  std::string folder_;
  std::map<std::string, View> members_;
  std::map<std::string, shoal_program*> programs_;
};

class Plan {
 public:
  Plan(const Json& plan, Bundle& bundle, const Windows& train, const Windows& test, View model, std::function<void()> between)
      : plan_(plan), bundle_(bundle), train_(train), test_(test), between_(std::move(between)), tensors_(bundle.initial()), model_(read_tensors(model)),
        hyper_(bundle.manifest.at("hyper")), draws_(plan.at("seed").get<uint64_t>()) {
    for (const auto& [name, tensor] : model_) {
      tensors_.at(name) = tensor;
    }
  }

  // Returns the update, a tensor file with its message.
  std::string carry_out(const std::string& device) {
    const auto began = std::chrono::steady_clock::now();
    for (const Json& verb : plan_.at("verbs")) {
      const bool whole = verb.value("holdout", 0.0) == 0 && verb.value("report", true);
      if (whole && verb["type"] == "train") {
        train(verb);
      } else if (whole && verb["type"] == "evaluate" && verb.value("model", "received") == "received" && verb.value("split", "test") == "test") {
        evaluated_ = run_over(verb.value("graph", "evaluate"), test_, order_of(test_, false), 256, true);
      } else {
        fail("verb " + verb.dump() + " is none of the prototype's");
      }
    }
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    Json update = {{"type", "update"}};
    for (const char* field : {"run_id", "epoch", "round", "attempt"}) {
      update[field] = plan_.at(field);
    }
    update.update(Json{
        {"device_id", device}, {"model", plan_.at("model")}, {"num_train", train_.count}, {"num_steps", steps_}, {"evaluated", evaluated_.json()},
        {"trained", trained_.json()}, {"bytes_received", 0}, {"train_s", seconds}, {"share", nullptr}, {"node", ""}});
    return write_tensors(changed(), update);
  }

 private:
  void train(const Json& verb) {
    if (!verb.value("steps", Json()).is_null()) {
      fail("a number of steps is not the prototype's");
    }
    const Json hyper = verb.value("hyper", Json::object());
    for (const auto& [name, value] : hyper.items()) {
      hyper_[name] = value;
    }
    trained_ = {};
    graph_ = verb.value("graph", "step");
    for (int epoch = verb.value("epochs", 1); epoch > 0; --epoch) {
      const Sums pass = run_over(graph_, train_, order_of(train_, true), verb.at("batch_size"), false);
      trained_ = {trained_.num_examples + pass.num_examples, trained_.loss_sum + pass.loss_sum, trained_.num_correct + pass.num_correct};
    }
  }

  std::vector<size_t> order_of(const Windows& windows, bool shuffled) {
    std::vector<size_t> order(windows.count);
    std::iota(order.begin(), order.end(), 0);
    if (shuffled) {
      std::shuffle(order.begin(), order.end(), draws_);
    }
    return order;
  }

  // Runs a graph over windows in batches, takes its next tensors, and returns the sums of its metrics.
  Sums run_over(const std::string& graph, const Windows& windows, const std::vector<size_t>& order, size_t batch, bool evaluation) {
    const size_t least = bundle_.manifest.at("min_batch"), most = bundle_.manifest["graphs"].at(graph).at("programs").at("executorch").at("max_batch");
    const auto bounds = bounds_of(order.size(), evaluation ? std::min(batch, most - least + 1) : batch, least);
    Sums sums;
    for (size_t i = 0; i + 1 < bounds.size(); ++i) {
      between_();
      std::string x, y;
      for (size_t at = bounds[i]; at < bounds[i + 1]; ++at) {
        x += windows.x.substr(order[at] * windows.bytes_each, windows.bytes_each);
        y += windows.y.substr(order[at] * 8, 8);
      }
      run(graph, x, y, bounds[i + 1] - bounds[i], sums);
      steps_ += evaluation ? 0 : 1;
    }
    return sums;
  }

  void run(const std::string& graph, const std::string& x, const std::string& y, size_t count, Sums& sums) {
    shoal_program* program = bundle_.program(graph);
    const Json& about = bundle_.manifest["graphs"][graph];
    std::vector<shoal_tensor> inputs(about["inputs"].size()), outputs(about["outputs"].size());
    std::vector<float> scalars(inputs.size());
    for (size_t i = 0; i < inputs.size(); ++i) {
      const std::string name = about["inputs"][i];
      if (shoal_program_describe_input(program, i, &inputs[i])) {
        fail("graph " + graph + " has no input " + name);
      }
      if (name.rfind("hyper/", 0) == 0) {
        scalars[i] = hyper_.at(name.substr(6));
        inputs[i].data = &scalars[i];
      } else if (name == "batch/x" || name == "batch/y") {
        inputs[i].sizes[0] = count;
        inputs[i].data = const_cast<char*>((name == "batch/x" ? x : y).data());
      } else {
        inputs[i].data = &tensors_.at(name).data[0];
      }
    }
    char error[1024];
    if (shoal_program_run(program, inputs.data(), inputs.size(), outputs.data(), outputs.size(), error, sizeof error)) {
      fail(error);
    }
    for (size_t i = 0; i < outputs.size(); ++i) {
      const std::string name = about["outputs"][i];
      if (name.rfind("next/", 0) == 0) {
        std::string& data = tensors_.at(name.substr(5)).data;
        std::memcpy(&data[0], outputs[i].data, data.size());
      } else {
        const double value = outputs[i].dtype == 4 ? *static_cast<int64_t*>(outputs[i].data) : *static_cast<float*>(outputs[i].data);
        (name == "metric/loss_sum" ? sums.loss_sum : sums.num_correct) += value;
      }
    }
    sums.num_examples += count;
  }

  // Returns what training changed: parameters as local minus received, statistics as they are.
  Tensors changed() const {
    Tensors sent;
    for (const Json& output : graph_.empty() ? Json::array() : bundle_.manifest["graphs"][graph_]["outputs"]) {
      const std::string name = output;
      if (name.rfind("next/statistic/", 0) == 0) {
        sent[name.substr(5)] = tensors_.at(name.substr(5));
      } else if (name.rfind("next/shared/", 0) == 0) {
        Tensor delta = tensors_.at(name.substr(5));
        auto* values = reinterpret_cast<float*>(&delta.data[0]);
        const auto* before = reinterpret_cast<const float*>(model_.at(name.substr(5)).data.data());
        for (size_t i = 0; i < delta.data.size() / sizeof(float); ++i) {
          values[i] -= before[i];
        }
        sent["delta/" + name.substr(12)] = std::move(delta);
      }
    }
    return sent;
  }

  const Json& plan_;
  Bundle& bundle_;
  const Windows &train_, &test_;
  std::function<void()> between_;
  Tensors tensors_, model_;
  Json hyper_;
  std::mt19937_64 draws_;
  std::string graph_;
  Sums evaluated_, trained_;
  int64_t steps_ = 0;
};
