// api/replicas/replica_gradients.h: which parameters of the session's models replicas average, and
// when not.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/UndefinedTensorImpl.h>

#include <c10/util/flat_hash_map.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_set>
#include <utility>
#include <vector>

#include "dp/gradient_reducer.h"
#include "server/sums/gradient_listener.h"

namespace smp {

class DistributedModelBase;
class OptimizerShards;
class Rank;
class SessionState;

/// Averages the gradients of one rank over its replicas, which hold the same parameters. Slices of
/// distributed modules are special: their gradients are of the samples of all ranks that share the
/// module, so only replicas of the same slice add theirs, and the sum is divided by the number of
/// all batches of the job. Between steps `.grad` of a slice counts like any other. While a step
/// runs it is a sum over the batches that go through the slice, so what was there before is
/// multiplied by their number. Threads: the rank's.
class ReplicaGradients final : public server::GradientListener {
 public:
  /// For each model two reports of the gradients on a rank: of whole parameters, then of slices.
  using Reports = std::vector<dp::GradientReducer::Report>;

  /// Refers to its arguments.
  ReplicaGradients(Rank& rank, const SessionState& state, const OptimizerShards& shards)
      : rank_(rank), state_(state), shards_(shards) {}

  /// Forgets the models, because some were placed or are gone.
  void forget();
  /// This rank's part of a step with gradients begins, models are placed. What becomes final may be
  /// added up at once. What replicas own alone, and has not been zeroed since it was averaged,
  /// counts for all of them; what lies in `.grad` of a slice, for all batches that go through it.
  /// @param step  its number among those with gradients, the same on all replicas
  void begin_step(std::int64_t step);
  /// At the end of the step.
  Reports report();
  /// Averages what belongs to models without a NoSync. @param reports  of all replicas
  void reduce(const std::vector<Reports>& reports, std::int64_t step);
  /// The step has ended, well or not. Gives up what was begun early and is not averaged; nobody is
  /// waited for. Gradients of slices that are not averaged count like any other again.
  void end_step() noexcept;

  void on_final(const at::Tensor& parameter) override;
  void on_pause() override;
  /// Returns the number of buckets averaged early so far, of the models that there are; for tests.
  std::uint64_t averaged_early();
  /// True if steps under a NoSync have left gradients of some of `parameters` apart: the same on
  /// all replicas.
  bool left_apart(const std::vector<at::Tensor>& parameters) const;
  /// True if this rank has such a gradient.
  bool apart(const std::vector<at::Tensor>& parameters) const;
  /// Notes that the gradients of `parameters` are gone, or averaged.
  void forget_apart(const std::vector<at::Tensor>& parameters);

 private:
  /// A parameter that is owned here, and the divisor of the sum of its gradients.
  struct Owned {
    at::Tensor parameter;
    int divisor;
  };
  /// A parameter whose gradient is a mean; another tensor in that gradient's place is the user's.
  struct Mean {
    at::Tensor parameter;
    c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> gradient;
    int divisor;
  };
  struct Model {
    const DistributedModelBase* model;
    std::unique_ptr<dp::GradientReducer> whole, sliced;
    std::vector<Owned> owned;        // whose gradients are here alone
    std::vector<at::Tensor> slices;  // of which `sliced` is
    bool summed = false;             // their gradients are sums over batches, see above
  };
  /// The reducer that averages a parameter, and the parameter's number there.
  struct Place {
    dp::GradientReducer* reducer;
    std::size_t number;
  };
  std::unique_ptr<dp::GradientReducer> make_reducer(const d2d::Communicator& members,
                                                    const std::vector<at::Tensor>& parameters,
                                                    int divisor);
  void find_models();
  int batches_of_slices();
  void take_means();
  void give_means_back();
  void count_slices_for_batches();
  void begin_early(std::uint64_t step);
  void end_early() noexcept;
  static void set_hook(const Model& model);
  template <class Do>
  void for_each_reducer(Do&& act);
  std::vector<std::size_t> replicas_of_slices() const;

  Rank& rank_;
  const SessionState& state_;
  const OptimizerShards& shards_;
  std::vector<Model> models_;                      // empty: not known yet
  ska::flat_hash_map<const void*, Place> places_;  // by parameter
  std::vector<Mean> means_;                        // of parameters that are owned here
  std::vector<Mean> taken_;                        // of these, those that count for all replicas
  std::unordered_set<const void*> apart_;          // parameters, by TensorImpl
};

}  // namespace smp
