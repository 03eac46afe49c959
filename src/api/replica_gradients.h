// api/replica_gradients.h: which parameters of the session's models replicas average, and when not.
#pragma once

#include <string>
#include <vector>

#include "dp/gradient_reducer.h"

namespace smp {

class DistributedModelBase;
class Runtime;

/// Of one rank, whose replicas hold the same parameters. Threads: the rank's.
class ReplicaGradients {
 public:
  /// How each model's gradients lie here.
  using Forms = std::vector<dp::GradientReducer::Forms>;

  explicit ReplicaGradients(Runtime& runtime) : runtime_(runtime) {}

  /// Models were placed, or are gone.
  void forget() { models_.clear(); }
  Forms forms();
  /// Averages what belongs to models without a NoSync. @param forms  of all replicas
  void reduce(const std::vector<Forms>& forms);

 private:
  struct Model {
    const DistributedModelBase* model;
    dp::GradientReducer reducer;
  };
  void find_models();

  Runtime& runtime_;
  std::vector<Model> models_;  // empty: not known yet
};

}  // namespace smp
