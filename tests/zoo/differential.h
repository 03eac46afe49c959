// zoo/differential.h: trains a zoo model with this library and in one process, and compares losses,
// every gradient, and parameters and buffers after the last step
// (docs/design.md, Equal to one process).
#pragma once

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "smp/recompute/activation_checkpointing.h"
#include "zoo/branches.h"
#include "zoo/chains.h"
#include "zoo/encoder_decoder.h"
#include "zoo/statistics.h"
#include "zoo/values.h"
#include "zoo/zoo.h"

namespace smp::zoo {

inline constexpr int kSteps = 5;
inline constexpr int kMicrobatches = 4;

inline std::vector<Case> all_cases() {
  std::vector<Case> all;
  for (auto& family : {chains(), branches(), values(), encoder_decoders(), statistics()}) {
    all.insert(all.end(), family.begin(), family.end());
  }
  return all;
}

/// What training leaves behind, on the CPU; tensors by name, gradients as "step 3 layers.0.weight".
struct Trace {
  std::vector<double> losses;
  std::map<std::string, Tensor> gradients;
  std::map<std::string, Tensor> finals;

  void note_gradients(int step, const DistributedModelBase::NamedTensors& parameters) {
    for (const auto& [name, parameter] : parameters) {
      const auto& gradient = parameter.grad();
      gradients["step " + std::to_string(step) + " " + name] =
          gradient.defined() ? gradient.detach().cpu().clone() : Tensor();
    }
  }
  void note_finals(const DistributedModelBase::NamedTensors& tensors) {
    for (const auto& [name, tensor] : tensors) finals[name] = tensor.detach().cpu();
  }
};

/// `order`: built under smp::delay_param_initialization, cast when it has no values yet.
inline Model build(const Case& c, torch::Dtype dtype, std::optional<InitOrder> order = {}) {
  torch::manual_seed(7);
  std::optional<delay_param_initialization> delay;
  if (order) delay.emplace(*order);
  auto model = c.make();
  delay.reset();
  model->to(dtype);
  return model;
}

inline std::vector<Tensor> batch_of(const Case& c, int step, torch::Dtype dtype) {
  auto batch = c.batch(step);
  for (auto& tensor : batch) {
    if (tensor.is_floating_point()) tensor = tensor.to(dtype);
  }
  return batch;
}

inline DistributedModelBase::NamedTensors named(
    const torch::OrderedDict<std::string, Tensor>& tensors) {
  DistributedModelBase::NamedTensors result;
  for (const auto& item : tensors) {
    if (item.value().defined()) result.emplace_back(item.key(), item.value());
  }
  return result;
}

/// `batch` on `device`.
inline std::vector<Tensor> moved(std::vector<Tensor> batch, torch::Device device) {
  for (auto& tensor : batch) tensor = tensor.to(device);
  return batch;
}

/// Of `replicas` that train one model, replica `own` reads every `replicas`-th batch.
struct ReplicaOf {
  int replicas = 1;
  int own = 0;
  int batch(int step) const { return step * replicas + own; }
};

/// The microbatches of one step in order, and the weight of each: its share of all rows.
inline std::vector<std::pair<std::vector<Tensor>, double>> weighted_microbatches(
    const Case& c, int step, torch::Dtype dtype, int microbatches, int replicas) {
  std::vector<std::pair<std::vector<Tensor>, double>> all;
  double rows = 0;
  for (int r = 0; r < replicas; ++r) {
    const auto batch = batch_of(c, ReplicaOf{replicas, r}.batch(step), dtype);
    rows += static_cast<double>(batch[0].size(0));
    for (int m = 0; m < microbatches; ++m) {
      std::vector<Tensor> slice;
      for (const auto& tensor : batch) slice.push_back(tensor.tensor_split(microbatches, 0)[m]);
      all.emplace_back(slice, static_cast<double>(slice[0].size(0)));
    }
  }
  for (auto& [slice, weight] : all) weight /= rows;
  return all;
}

/// LibTorch alone, with its own engine: the same microbatches in order, each loss weighted by its
/// share of the rows. @param replicas  whose batches make one global batch
inline Trace train_in_one_process(const Case& c, torch::Dtype dtype = torch::kDouble,
                                  int microbatches = kMicrobatches, int replicas = 1,
                                  torch::Device device = torch::kCPU) {
  Trace trace;
  auto model = build(c, dtype);
  model->to(device);
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    double mean = 0;
    for (const auto& [slice, weight] :
         weighted_microbatches(c, step, dtype, microbatches, replicas)) {
      const auto losses = model->forward(moved(slice, device));
      for (std::size_t i = 0; i < losses.size(); ++i) {
        mean += losses[i].item<double>() * weight;
        (losses[i] * weight).backward({}, i + 1 < losses.size());
      }
    }
    trace.losses.push_back(mean);
    trace.note_gradients(step, named(model->named_parameters()));
    optimizer.step();
  }
  trace.note_finals(named(model->named_parameters()));
  trace.note_finals(named(model->named_buffers()));
  return trace;
}

/// Which modules of a model are computed again in the backward.
enum class Again { kNone, kWhole, kLeaves, kSome };

inline void mark(torch::nn::Module& model, Again again) {
  std::mt19937 random(5);
  for (const auto& module : model.modules()) {
    const auto* const routed = dynamic_cast<const RoutedBase*>(module.get());
    if (routed == nullptr || !routed->smp_cannot_cross().empty()) continue;
    const bool chosen = again == Again::kWhole    ? module.get() == &model
                        : again == Again::kLeaves ? module->children().empty()
                                                  : random() % 2 == 0;
    if (again != Again::kNone && chosen) set_activation_checkpointing(*module);
  }
}

/// One rank's part of the same training with this library, on the session's device; runs inside a
/// session. Losses are those of the rank's replica.
inline Trace train_distributed(const Case& c, const std::map<std::string, int>& placement,
                               torch::Dtype dtype = torch::kDouble,
                               std::optional<InitOrder> order = {}, ReplicaOf replica = {},
                               Again again = Again::kNone) {
  Trace trace;
  auto whole = build(c, dtype, order);
  mark(*whole, again);
  if (!device().is_cpu()) whole->to(device());
  DistributedModel model(whole);
  for (const auto& [path, rank] : placement) model.set_partition(path, rank);
  DistributedOptimizer optimizer(
      model, torch::optim::SGD(model.parameters(), torch::optim::SGDOptions(0.05).momentum(0.9)));
  auto total = [](const std::vector<Tensor>& losses) {
    auto sum = losses[0];
    for (std::size_t i = 1; i < losses.size(); ++i) sum = sum + losses[i];
    return sum;
  };
  auto train = step([&](std::vector<Tensor> inputs) {
    auto losses = model(inputs);
    if (c.separate_backwards) {
      for (std::size_t i = 0; i < losses.size(); ++i) {
        model.backward(losses[i], {}, i + 1 < losses.size());
      }
    } else {
      model.backward(losses);
    }
    return total(losses);
  });
  auto evaluate = step([&](std::vector<Tensor> inputs) { return total(model(inputs)); });
  for (int i = 0; i < c.evaluations; ++i) {
    torch::NoGradGuard no_grad;
    model.eval();
    evaluate(moved(batch_of(c, i + 100, dtype), device()));
    model.train();
  }
  for (int s = 0; s < kSteps; ++s) {
    optimizer.zero_grad();
    const auto batch = moved(batch_of(c, replica.batch(s), dtype), device());
    trace.losses.push_back(train(batch).reduce_mean().template item<double>());
    trace.note_gradients(s, model.local_named_parameters());
    optimizer.step();
  }
  trace.note_finals(model.local_named_parameters());
  trace.note_finals(model.local_named_buffers());
  return trace;
}

/// Any rank for each path of the case; the rest stays on rank 0.
inline std::map<std::string, int> random_placement(const Case& c, int ranks, unsigned seed) {
  std::mt19937 random(seed);
  std::map<std::string, int> placement;
  for (const auto& path : c.paths) placement[path] = static_cast<int>(random() % ranks);
  return placement;
}

inline void expect_close(const Tensor& ours, const Tensor& reference, double tolerance,
                         const std::string& name) {
  ASSERT_EQ(ours.defined(), reference.defined()) << name;
  if (!ours.defined()) return;
  if (!reference.is_floating_point()) {
    EXPECT_TRUE(torch::equal(ours, reference)) << name;
    return;
  }
  EXPECT_TRUE(torch::equal(ours.isnan(), reference.isnan())) << name;
  const auto expected = reference.nan_to_num(0, INFINITY, -INFINITY);
  const double scale = std::max(1e-3, expected.abs().max().item<double>());
  EXPECT_LE((ours.nan_to_num(0, INFINITY, -INFINITY) - expected).abs().max().item<double>(),
            tolerance * scale)
      << name;
}

/// Fails unless `ours`, the parts of all ranks together, has everything that `reference` has.
inline void expect_complete(const std::set<std::string>& ours, const Trace& reference) {
  for (const auto* tensors : {&reference.gradients, &reference.finals}) {
    for (const auto& [name, tensor] : *tensors) {
      EXPECT_TRUE(ours.count(name)) << name << " is on no rank";
    }
  }
}

inline std::set<std::string> names_of(const Trace& trace) {
  std::set<std::string> names;
  for (const auto& [name, tensor] : trace.gradients) names.insert(name);
  for (const auto& [name, tensor] : trace.finals) names.insert(name);
  return names;
}

/// Everything `ours` has must be in `reference` and equal; see expect_complete() for the other way.
inline void expect_equal(const Trace& ours, const Trace& reference, double tolerance) {
  ASSERT_EQ(ours.losses.size(), reference.losses.size());
  for (std::size_t i = 0; i < ours.losses.size(); ++i) {
    EXPECT_NEAR(ours.losses[i], reference.losses[i], tolerance) << "loss of step " << i;
  }
  for (const auto& [name, gradient] : ours.gradients) {
    ASSERT_TRUE(reference.gradients.count(name)) << name;
    expect_close(gradient, reference.gradients.at(name), tolerance, "gradient, " + name);
  }
  for (const auto& [name, tensor] : ours.finals) {
    ASSERT_TRUE(reference.finals.count(name)) << name;
    expect_close(tensor, reference.finals.at(name), tolerance, "final " + name);
  }
}

inline Config zoo_config(const std::string& schedule) {
  Config config;
  config.microbatches = kMicrobatches;
  config.pipeline = schedule;
  config.auto_partition = false;
  config.default_partition = 0;
  return config;
}

}  // namespace smp::zoo
