// api/replicas/replica_gradients.h: of which parameters of the session's models replicas add up the
// gradients, and when not.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/UndefinedTensorImpl.h>

#include <c10/util/flat_hash_map.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_set>
#include <vector>

#include "dp/gradient_reducer.h"
#include "server/sums/gradient_listener.h"

namespace smp {

class DistributedModelBase;
class OptimizerShards;
class Rank;
class SessionState;

/// Adds up the gradients of one rank and its replicas, which hold the same parameters. Slices of
/// distributed modules are special: their gradients are of the samples of all ranks that share the
/// module, so only replicas of the same slice add theirs. Between steps `.grad` is the same on all
/// replicas and counts once. While a step runs it is one term of the sum, so what was there before
/// is divided by the number of terms; the losses themselves have weights that make the sum right,
/// and nothing that a step adds to a gradient is ever scaled. Threads: the rank's.
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
  /// added up at once. What lies in `.grad` becomes this rank's term of the sum.
  /// @param step  its number among those with gradients, the same on all replicas
  void begin_step(std::int64_t step);
  /// At the end of the step.
  Reports report();
  /// Adds up what belongs to models without a NoSync. @param reports  of all replicas
  void reduce(const std::vector<Reports>& reports, std::int64_t step);
  /// The step has ended, well or not. Gives up what was begun early and does not count; nobody is
  /// waited for. Gradients that were not added up are no terms any longer: each replica has its
  /// own.
  void end_step() noexcept;

  void on_final(const at::Tensor& parameter) override;
  void on_pause() override;
  /// Returns the number of buckets added up early so far, of the models that there are; for tests.
  std::uint64_t averaged_early();
  /// True if steps under a NoSync have left gradients of some of `parameters` apart: the same on
  /// all replicas.
  bool left_apart(const std::vector<at::Tensor>& parameters) const;
  /// True if this rank has such a gradient.
  bool apart(const std::vector<at::Tensor>& parameters) const;
  /// Notes that the gradients of `parameters` are zero, or gone.
  void note_zeroed(const std::vector<at::Tensor>& parameters);

 private:
  using Given = dp::GradientReducer::Given;
  using WeakGradient = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

  /// A parameter of this rank. Replicas add up the gradients of `terms` different batches, each of
  /// which `divisor` of them have.
  struct Parameter {
    at::Tensor tensor;
    int terms;
    int divisor;
    Given given = Given::kNothing;
    at::Tensor aside = {};  // kReplaced: a copy of it; kBeside: what lay there
  };
  struct Model {
    const DistributedModelBase* model;
    std::unique_ptr<dp::GradientReducer> whole, sliced;
    std::vector<Parameter> parameters;  // of both
    bool adding = false;                // their gradients are terms, see above
  };
  /// The reducer that adds up a parameter's gradients, and the parameter's number there.
  struct Place {
    dp::GradientReducer* reducer;
    std::size_t number;
  };
  std::unique_ptr<dp::GradientReducer> make_reducer(const d2d::Communicator& members,
                                                    const std::vector<at::Tensor>& parameters,
                                                    int divisor);
  void find_models();
  bool is_whole_here(const at::Tensor& parameter) const;
  void look_at_given(Parameter& parameter);
  void make_terms();
  void make_whole(Model& model);
  void note_given(const Model& model, const dp::GradientReducer& reducer,
                  dp::GradientReducer::Report& report) const;
  void take_given(Model& model, const dp::GradientReducer& reducer,
                  const std::vector<dp::GradientReducer::Report>& reports);
  void note_summed(const Model& model);
  void note_left(const at::Tensor& parameter);
  void forget_apart(const std::vector<at::Tensor>& parameters);
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
  /// By parameter with an owner, since its gradient was added up: here, where this is the owner,
  /// the sum, which no other replica has.
  ska::flat_hash_map<const void*, WeakGradient> summed_;
  std::unordered_set<const void*> left_;   // of others: steps have left this replica's own terms
  std::unordered_set<const void*> apart_;  // parameters, by TensorImpl
};

}  // namespace smp
