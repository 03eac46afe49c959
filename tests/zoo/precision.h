// zoo/precision.h: zoo models under the setting `precision`, and one process of plain LibTorch that
// does the same arithmetic by hand.
#pragma once

#include <ATen/autocast_mode.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "api/model/cast_model.h"
#include "api/replicas/replicas_testing.h"
#include "precision/stochastic_rounding.h"
#include "smp/precision/grad_scaler.h"
#include "zoo/differential.h"

namespace smp::zoo {

/// Of losses in float16: gradients of these models need none, but everything takes part.
inline constexpr double kLossScale = 1024;

inline Config precision_config(const std::string& precision, int stages = 1, bool sharded = false) {
  auto config = zoo_config("interleaved");
  config.precision = precision;
  config.pipeline_parallel_degree = stages;
  config.shard_optimizer_state = sharded;
  config.plan_cache = "off";
  return config;
}

/// What the program casts its arguments to.
inline torch::Dtype type_of_arguments(const std::string& precision) {
  if (precision == "fp16") return torch::kHalf;
  return precision == "amp" || precision == "fp32" ? torch::kFloat : torch::kBFloat16;
}

inline torch::optim::SGDOptions sgd_options() {
  return torch::optim::SGDOptions(0.05).momentum(0.9);
}

/// One process. What has 16 bits is computed by LibTorch in 16 bits; gradients of microbatches are
/// added in float32, each replica's sum is rounded, and so is the sum of all; LibTorch's SGD steps
/// float32 numbers, which are rounded to nearest, or by chance.
class PlainIn16Bits {
 public:
  PlainIn16Bits(const Case& c, std::string precision, int replicas)
      : case_(c),
        precision_(std::move(precision)),
        replicas_(replicas),
        model_(build(c, torch::kFloat)) {
    cast_model(*model_, precision_config(precision_));
    for (const auto& item : model_->named_parameters()) {
      names_.push_back(item.key());
      parameters_.push_back(item.value());
      wide_.push_back(item.value().detach().to(torch::kFloat));
    }
    own_.resize(parameters_.size());
    sums_.resize(parameters_.size());
    optimizer_ = std::make_unique<torch::optim::SGD>(wide_, sgd_options());
  }

  Trace train() {
    for (int step = 0; step < kSteps; ++step) {
      double mean = 0;
      std::fill(sums_.begin(), sums_.end(), Tensor());
      std::fill(own_.begin(), own_.end(), Tensor());
      int microbatch = 0;
      for (const auto& [slice, weight] : weighted_microbatches(
               case_, step, type_of_arguments(precision_), kMicrobatches, replicas_)) {
        mean += run(slice, weight);
        add_gradients();
        if (++microbatch % kMicrobatches == 0) end_replica();
      }
      trace_.losses.push_back(mean);
      note_gradients(step);
      step_optimizer(step);
    }
    trace_.note_finals(named(model_->named_parameters()));
    trace_.note_finals(named(model_->named_buffers()));
    return trace_;
  }

 private:
  double scale() const { return precision_ == "fp16" ? kLossScale : 1; }

  /// Forward and backward of a microbatch; returns its losses, weighted.
  double run(const std::vector<Tensor>& slice, double weight) {
    model_->zero_grad();
    at::autocast::set_autocast_enabled(at::kCPU, precision_ == "amp");
    const auto losses = model_->forward(slice);
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
    double sum = 0;
    std::vector<Tensor> scaled, seeds;
    for (const auto& loss : losses) {
      sum += loss.item<double>() * weight;
      scaled.push_back(loss * scale());
      seeds.push_back(torch::full_like(scaled.back(), weight));
    }
    if (!case_.separate_backwards) {
      torch::autograd::backward(scaled, seeds);
      return sum;
    }
    for (std::size_t i = 0; i < losses.size(); ++i) {
      scaled[i].backward(seeds[i], i + 1 < losses.size());
    }
    return sum;
  }

  static void add(Tensor& sum, const Tensor& term) {
    const auto wide = term.detach().to(torch::kFloat);
    sum = sum.defined() ? sum + wide : wide.clone();
  }

  void add_gradients() {
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      if (parameters_[i].grad().defined()) add(own_[i], parameters_[i].grad());
    }
  }

  /// What a replica sends has its parameter's type.
  void end_replica() {
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      const auto own = std::exchange(own_[i], Tensor());
      if (own.defined()) add(sums_[i], own.to(parameters_[i].scalar_type()));
    }
  }

  Tensor gradient(std::size_t i) const {
    return sums_[i].defined() ? sums_[i].to(parameters_[i].scalar_type()) : Tensor();
  }

  void note_gradients(int step) {
    for (std::size_t i = 0; i < names_.size(); ++i) {
      const auto own = gradient(i);
      trace_.gradients["step " + std::to_string(step) + " " + names_[i]] =
          own.defined() ? own.to(torch::kDouble) / scale() : own;
    }
  }

  void step_optimizer(int step) {
    const torch::NoGradGuard no_grad;
    const bool by_chance = precision_ == "bf16_sr";
    for (std::size_t i = 0; i < names_.size(); ++i) {
      auto& grad = wide_[i].mutable_grad();
      grad.reset();
      if (sums_[i].defined()) grad = gradient(i).to(torch::kFloat) / scale();
      if (by_chance) wide_[i].copy_(parameters_[i]);
    }
    optimizer_->step();
    for (std::size_t i = 0; i < names_.size(); ++i) {
      if (!sums_[i].defined()) continue;
      if (by_chance && parameters_[i].scalar_type() == torch::kBFloat16) {
        const auto key = precision::rounding_key(
            precision_config(precision_).seed, static_cast<std::uint64_t>(step), "0." + names_[i]);
        const auto all = parameters_[i].numel();
        precision::round_stochastically(wide_[i].contiguous(), parameters_[i].detach(), key,
                                        {all, all, 0});
      } else {
        parameters_[i].copy_(wide_[i]);
      }
    }
  }

  const Case& case_;
  const std::string precision_;
  const int replicas_;
  Model model_;
  std::vector<std::string> names_;
  std::vector<Tensor> parameters_, wide_;
  std::vector<Tensor> own_, sums_;  // of one replica's gradients, of all replicas'
  std::unique_ptr<torch::optim::SGD> optimizer_;
  Trace trace_;
};

/// One rank's part of the same with this library; runs inside a session.
inline Trace train_in_16_bits(const Case& c, const std::string& precision,
                              const std::map<std::string, int>& placement) {
  Trace trace;
  const ReplicaOf replica{dp_size(), dp_rank()};
  DistributedModel model(build(c, torch::kFloat));
  for (const auto& [path, rank] : placement) model.set_partition(path, rank);
  DistributedOptimizer optimizer(model, torch::optim::SGD(model.parameters(), sgd_options()));
  GradScaler scaler({.init_scale = kLossScale, .enabled = precision == "fp16"});
  auto train = step([&](std::vector<Tensor> inputs) {
    auto losses = model(inputs);
    auto sum = losses[0].detach().to(torch::kDouble);
    for (std::size_t i = 1; i < losses.size(); ++i)
      sum = sum + losses[i].detach().to(torch::kDouble);
    for (auto& loss : losses) loss = scaler.scale(loss);
    for (std::size_t i = 0; c.separate_backwards && i < losses.size(); ++i) {
      model.backward(losses[i], {}, i + 1 < losses.size());
    }
    if (!c.separate_backwards) model.backward(losses);
    return sum;
  });
  for (int s = 0; s < kSteps; ++s) {
    optimizer.zero_grad();
    const auto batch = batch_of(c, replica.batch(s), type_of_arguments(precision));
    trace.losses.push_back(train(batch).reduce_mean().template item<double>());
    trace.note_gradients(s, model.local_named_parameters());
    scaler.step(optimizer);
    if (precision == "fp16") scaler.update();
  }
  if (precision == "fp16") {
    for (auto& [name, gradient] : trace.gradients) {
      if (gradient.defined()) gradient = gradient.to(torch::kDouble) / kLossScale;
    }
  }
  trace.note_finals(model.local_named_parameters());
  trace.note_finals(model.local_named_buffers());
  return trace;
}

struct PrecisionLayout {
  int stages = 1, replicas = 1;
  bool sharded = false;
};

/// All ranks' parts, with the losses of all replicas' samples.
inline Trace train_in_16_bits(const Case& c, const std::string& precision,
                              const PrecisionLayout& layout, unsigned seed) {
  Trace whole;
  run_local(layout.stages * layout.replicas,
            [&] {
              auto part = train_in_16_bits(c, precision, random_placement(c, layout.stages, seed));
              join_losses(c, part);
              if (layout.replicas > 1) drop_statistics(part);
              std::erase_if(part.gradients, [&](const auto& item) {
                return layout.sharded && !item.second.defined();  // of another replica's share
              });
              whole.losses = part.losses;
              whole.gradients.merge(part.gradients);
              whole.finals.merge(part.finals);
            },
            precision_config(precision, layout.stages, layout.sharded), {seed});
  return whole;
}

/// The largest difference of a tensor, over its largest entry.
inline double error_of(const std::map<std::string, Tensor>& ours,
                       const std::map<std::string, Tensor>& reference) {
  double most = 0;
  for (const auto& [name, own] : ours) {
    const auto& due = reference.at(name);
    if (own.defined() != due.defined()) return INFINITY;
    if (!own.defined()) continue;
    const auto wide = due.to(torch::kDouble);
    const auto scale = std::max(1e-3, wide.abs().max().item<double>());
    const double error = (own.to(torch::kDouble) - wide).abs().max().item<double>() / scale;
    if (!(error <= most)) most = error;  // NaN too
  }
  return most;
}

/// How far apart results of several stages may be, over the largest entry. What several modules
/// give to one tensor is added there in another order, and a sum that is rounded to the other
/// neighbour is off by 2^-8 in bfloat16, by 2^-11 in float16; a parameter that was rounded so
/// changes what comes after it, for five steps.
inline const std::map<std::string, double> kTolerances{
    {"fp32", 2e-5}, {"amp", 0.05}, {"bf16", 0.06}, {"bf16_sr", 0.06}, {"fp16", 0.01}};

/// One stage has the bits of one process, in any number of replicas. Several are as near to it as
/// kTolerances say, or as three times its own distance from float64: gradients of a bias of keys,
/// which softmax makes zero, are roundings alone, and differ by as much as they are large.
inline void expect_near(const Trace& ours, const Trace& reference, const Trace& exact,
                        double tolerance, bool one_stage) {
  ASSERT_EQ(ours.losses.size(), reference.losses.size());
  for (std::size_t i = 0; i < ours.losses.size(); ++i) {
    EXPECT_NEAR(ours.losses[i], reference.losses[i],
                (one_stage ? 1e-6 : tolerance) * std::max(0.1, std::abs(reference.losses[i])));
  }
  if (one_stage) {
    EXPECT_EQ(error_of(ours.gradients, reference.gradients), 0);
    EXPECT_EQ(error_of(ours.finals, reference.finals), 0);
    return;
  }
  EXPECT_LE(error_of(ours.gradients, reference.gradients),
            std::max(tolerance, 3 * error_of(reference.gradients, exact.gradients)));
  EXPECT_LE(error_of(ours.finals, reference.finals), tolerance);
  EXPECT_LE(error_of(ours.finals, exact.finals),
            2 * error_of(reference.finals, exact.finals) + tolerance / 10);
}

/// Trains in every precision and in layouts of 1 to 8 ranks, against one process.
inline void expect_one_process_in_16_bits(const Case& c) {
  std::map<int, Trace> exact;
  for (const int replicas : {1, 2}) {
    exact[replicas] = train_in_one_process(c, torch::kDouble, kMicrobatches, replicas);
  }
  for (const auto& [precision, tolerance] : kTolerances) {
    std::map<int, Trace> references;
    for (const auto& layout :
         std::vector<PrecisionLayout>{{1, 1}, {2, 1}, {1, 2}, {2, 2, true}, {4, 2}}) {
      SCOPED_TRACE(testing::Message() << c.name << ", " << precision << ", " << layout.stages
                                      << " stages, " << layout.replicas << " replicas");
      auto& reference = references[layout.replicas];
      if (reference.losses.empty()) {
        reference = PlainIn16Bits(c, precision, layout.replicas).train();
      }
      expect_near(train_in_16_bits(c, precision, layout, 7), reference, exact[layout.replicas],
                  tolerance, layout.stages == 1);
    }
  }
}

}  // namespace smp::zoo
