// smp/distributed_model.h: a model whose modules live on several ranks (paper §3.2.3, §4.1).
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "smp/codec.h"
#include "smp/detail/export.h"
#include "smp/no_sync.h"
#include "smp/plan.h"

namespace smp {

class CommHook;
class DistributedModule;
class SessionState;
class StateDict;
struct LoadResult;
struct ComingStep;
struct PlannedModel;
struct SessionParts;
struct StepPreview;

/// The part of DistributedModel that does not depend on the type of the model.
///
/// Every rank builds the same model, with the same seed. Before the first step that uses it (or in
/// place()) each module gets a pp_rank; then every rank keeps the parameters it owns and frees the
/// others. Threads: the rank's. The session must outlive it.
class SMP_API DistributedModelBase {
 public:
  using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

  explicit DistributedModelBase(std::shared_ptr<torch::nn::Module> module);
  virtual ~DistributedModelBase();
  DistributedModelBase(const DistributedModelBase&) = delete;
  DistributedModelBase& operator=(const DistributedModelBase&) = delete;

  /// Runs the backward pass of one microbatch; only inside the body of smp::step. The gradient is
  /// scaled by the microbatch's weight (StepOptions::loss), so that the sum over all microbatches
  /// of the job is the gradient of its whole batch. A `loss` of more than one number needs a
  /// `gradient` of its shape. Suspends the body until the gradients of remote calls are there;
  /// those of parameters may enter `.grad` at any time up to the end of the step. During the trial
  /// run (smp::is_tracing()) it does nothing.
  /// @throws UsageError   outside of a body; `loss` needs no gradient, or is no number and
  ///                      `gradient` is missing.
  /// @throws RemoteError  what a module on another rank, or a hook there, threw. The step fails
  ///                      even if the body handles what backward throws.
  void backward(const at::Tensor& loss, const at::Tensor& gradient = {}, bool retain_graph = false);
  /// Runs backward from several roots in one pass; `gradients` is empty or as long as `tensors`.
  void backward(const std::vector<at::Tensor>& tensors,
                const std::vector<at::Tensor>& gradients = {}, bool retain_graph = false);

  /// Returns all parameters of the model, each once, in order of registration. After placement
  /// those of other ranks keep their shape and identity, but have no values: whatever reads or
  /// writes one throws UsageError.
  std::vector<at::Tensor> parameters() const;
  NamedTensors named_parameters() const;
  NamedTensors named_buffers() const;
  /// Returns the parameters that this rank owns; before placement all. A buffer that several ranks
  /// have (a small one, or one that modules of several ranks registered) is owned by one of them;
  /// the others may read it.
  std::vector<at::Tensor> local_parameters() const;
  NamedTensors local_named_parameters() const;
  NamedTensors local_named_buffers() const;

  /// Sets the training mode of this rank's copy of the model, between steps. A call carries its
  /// caller's modes to the rank that runs the module, so the modes on pp_rank 0 decide for
  /// everything that the body calls.
  void train(bool on = true);
  void eval() { train(false); }
  bool is_training() const;
  /// Zeroes the gradients of this rank's parameters, or makes them undefined (`set_to_none`); call
  /// it on every rank. @throws UsageError  inside a step.
  void zero_grad(bool set_to_none = true);

  /// While the result lives, steps add up gradients in each replica alone:
  ///
  ///     {
  ///       const auto apart = model.no_sync();
  ///       train(x1, y1);
  ///     }
  ///     train(x2, y2);     // brings the gradients of both steps together
  ///     optimizer.step();
  ///
  /// Call it alike on every rank, outside of steps. Without replicas it changes nothing.
  NoSync no_sync();
  /// True if steps add up gradients over replicas: no NoSync of this model lives.
  bool syncs_gradients() const noexcept;

  /// Sends this model's dense gradients between replicas as `hook` says, from the next step on
  /// (smp/comm_hook.h); nullptr sends them as they are. Call it alike on every rank, outside of
  /// steps. Parameters that several models share follow the hook of the first of these models.
  /// Without replicas it changes nothing.
  /// @throws UsageError        in a step.
  /// @throws UnsupportedError  Config::shard_optimizer_state is set.
  void register_comm_hook(std::shared_ptr<CommHook> hook);
  /// Returns the registered hook, or nullptr if there is none.
  const std::shared_ptr<CommHook>& comm_hook() const noexcept;

  /// Calls smp::clip_grad_norm_(*this, max_norm) of smp/clip_grad.h, with the 2-norm over all
  /// ranks; returns the norm before scaling. All ranks call it, after a step.
  double clip_grad_norm_(double max_norm);

  /// Returns all parameters and buffers from the ranks that own them, under the names of
  /// smp::state_dict() (smp/state_dict.h). They are copies, on pp_rank `pp_rank` (kAllPpRanks: on
  /// every rank); elsewhere the dict is empty. All ranks call it, outside of steps; one replica
  /// alone may: the ranks of its pipeline, and with distributed modules (smp/tp.h) all of
  /// smp::Group::kMp.
  /// @throws UsageError  inside a step; parameters have no values yet (delayed initialisation).
  StateDict state_dict(int pp_rank = 0) const;
  /// Returns the parameters and buffers that this rank owns; not copies.
  StateDict local_state_dict() const;
  /// Loads values as smp::load_state_dict() does; each rank takes what it owns. `dict` is given by
  /// all ranks, or by some and empty on the others, or each gives a part; every replica is given
  /// the same values. All ranks call it, outside of steps, before placement or after; everything is
  /// checked on all of them before any value changes. Values are those of now, whatever becomes of
  /// `dict`. With delayed initialisation they count in the order of the program too, and travel
  /// when the model is placed; until then each is kept by one of the ranks that gave it.
  /// @throws UsageError  on every rank, as smp::load_state_dict(); ranks give different values,
  ///                     under one name or under the names of one tensor.
  LoadResult load_state_dict(const StateDict& dict, bool strict = true);

  /// Places `module_path` and everything below it on stage `pp_rank`, unless placed more
  /// specifically. Call it before the first step that uses the model, alike on every rank. Path and
  /// stage are checked when the model is placed.
  /// @throws UsageError  the model is placed already.
  void set_partition(const std::string& module_path, int pp_rank);
  /// Decides the placement now instead of at the first step that uses the model. Without that
  /// step's body it is not known what each module costs and keeps, so modules are counted instead.
  /// Every rank calls it.
  void place();
  /// True once the model is placed.
  bool partitioned() const noexcept;
  /// Returns which stage runs which module. @throws UsageError before placement.
  const PartitionPlan& plan() const;

  /// Calls `callback` once, right after placement; at once if the model is placed already.
  void on_placed(std::function<void()> callback);
  /// True if this rank owns `parameter`, or a buffer, by the tensor's identity; each tensor has one
  /// owner. Before placement it is true of all.
  bool owns(const at::Tensor& parameter) const;

  // Of models with distributed modules (smp/tp.h; docs/tensor_parallelism.md).

  /// Returns the distributed modules by path; a module that stands in for a marked one has the path
  /// of that one.
  std::vector<std::pair<std::string, const DistributedModule*>> distributed_modules() const;
  /// True if `parameter`, one of the model's, is a slice: its gradient is of the samples of all
  /// ranks of the TP_GROUP.
  bool is_distributed_parameter(const at::Tensor& parameter) const;
  /// Returns the parameters whose gradients are added up over the DP_GROUP: all that are whole.
  NamedTensors default_reducer_named_parameters() const;
  /// Returns the parameters whose gradients are added up over the RDP_GROUP: the slices.
  NamedTensors scaled_batch_reducer_named_parameters() const;

  /// Returns the wrapped module.
  torch::nn::Module& base_module() const noexcept;

 protected:
  /// Checks that the model may be called now. @throws UsageError outside of a step's body.
  void check_callable() const;

 private:
  friend void prepare_models(const SessionParts& session, const ComingStep& step);
  friend void refuse_written_weights(const SessionParts& session, int microbatch);
  friend void take_buffers_of_first(const SessionParts& session);
  friend void before_values(DistributedModelBase& model, std::function<void()> bring);
  friend const std::string& simulation_of(const DistributedModelBase& model);
  friend void set_optimizer_ratio(DistributedModelBase& model, double optimizer_ratio);
  void require_placed() const;
  static void bring_values(const SessionState& session, const DistributedModelBase& placed);
  static void place(const SessionParts& session, const std::vector<DistributedModelBase*>& models,
                    const StepPreview* preview, bool may_wait);
  void carry_out(const SessionParts& session, PlannedModel&& planned);
  bool wait_for_place();
  static void refuse_two_owners(const SessionState& state, const DistributedModelBase& model,
                                const PartitionPlan& plan);

  struct State;
  std::unique_ptr<State> state_;
};

/// Wraps a model: `smp::DistributedModel model(net);` where `net` is a holder made by SMP_MODULE or
/// TORCH_MODULE, or a std::shared_ptr to a module. Call it like the model, inside smp::step.
template <class Holder>
class DistributedModel : public DistributedModelBase {
 public:
  explicit DistributedModel(Holder holder)
      : DistributedModelBase(module_of(holder)), holder_(std::move(holder)) {}

  /// Calls forward. Suspends the body while modules run on other ranks.
  /// @throws UsageError   outside of a step's body.
  /// @throws RemoteError  with the text of what a module on another rank threw.
  template <class... Arguments>
  auto operator()(Arguments&&... arguments) {
    check_callable();
    return holder_->forward(std::forward<Arguments>(arguments)...);
  }

  auto* operator->() { return &*holder_; }
  auto* operator->() const { return &*holder_; }
  /// Returns the holder that was wrapped.
  Holder& module() { return holder_; }

 private:
  static std::shared_ptr<torch::nn::Module> module_of(const Holder& holder) {
    if constexpr (requires { holder.ptr(); }) {
      return holder.ptr();
    } else {
      return holder;
    }
  }

  Holder holder_;
};

}  // namespace smp
