// api/step/distributed_model_state.h: what a distributed model is made of, for the sources that
// work on it.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "api/model/describe_model.h"
#include "api/model/model_pins.h"
#include "api/model/model_placement.h"
#include "api/rank/rank.h"
#include "api/rank/session_parts.h"
#include "api/state/session_state.h"
#include "api/step/wrapped_module.h"
#include "base/check.h"
#include "server/graph/leaf_guards.h"
#include "server/modules/weight_watch.h"
#include "smp/distributed_model.h"
#include "smp/tp/replacement.h"

namespace smp {

/// Threads: the rank's. Refers to the session, while it lives.
struct DistributedModelBase::State {
  State(const SessionParts& of, std::shared_ptr<torch::nn::Module> base)
      : module(std::move(base)),
        session_(of),
        alive_(of.state.alive()),
        pp_rank_(of.rank.pp_rank()) {}

  bool session_lives() const noexcept { return *alive_; }
  const SessionParts& session() const {
    SMP_REQUIRE(session_lives(), "the smp session of this model (", module->name(),
                ") has ended; keep what smp::init returned alive (`auto session = ...`) until the "
                "last use of models, optimizers and steps");
    return session_;
  }
  std::shared_ptr<torch::nn::Module> module;
  std::vector<partitioning::Pin> pins;
  std::optional<PartitionPlan> plan;
  std::string simulation;
  double optimizer_ratio = 2;
  std::vector<ReplacementCandidate> candidates;
  ReadMarks marks;
  ModelDescription description;
  std::optional<ModelPlacement> placement;
  server::LeafGuards guards;
  server::WeightWatch weights;
  std::vector<std::function<void()>> before_values;
  std::vector<std::function<void()>> on_placed;
  std::shared_ptr<int> no_sync_scopes = std::make_shared<int>(0);
  std::shared_ptr<CommHook> comm_hook;

  bool owns(const at::Tensor& tensor) const {
    return !placement || placement->is_on(pp_rank_, tensor);
  }
  /// Returns the stage that owns a tensor of the placed model; nothing if it is none of the
  /// model's.
  std::optional<PpRank> owner_of(const at::Tensor& tensor) const {
    const auto stages = static_cast<int>(ranks_of(session_.rank.topology(), Group::kPp).size());
    for (int stage = 0; stage < stages; ++stage) {
      if (placement->is_on(PpRank(stage), tensor)) return PpRank(stage);
    }
    return std::nullopt;
  }

 private:
  const SessionParts& session_;  // while the session lives
  std::shared_ptr<const bool> alive_;
  const PpRank pp_rank_;
};

}  // namespace smp
