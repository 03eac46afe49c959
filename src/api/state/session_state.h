// api/state/session_state.h: what a session's calls leave for each other on one rank: its models,
// and what happened so far.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "api/rank/shared_warnings.h"
#include "api/state/master_weights.h"
#include "api/state/step_facts.h"
#include "api/state/step_kinds.h"
#include "schedule/split_step.h"
#include "schedule/step_trace.h"

namespace smp {

class DistributedModelBase;

/// What a smp::GradScaler has come to.
struct LossScale {
  double factor = 1;
  std::int64_t skipped_steps = 0;  ///< so far, of all optimizers
};

/// Threads: the rank's.
class SessionState {
 public:
  SessionState() = default;
  SessionState(const SessionState&) = delete;
  SessionState& operator=(const SessionState&) = delete;

  /// Of the running fiber. @throws UsageError if there is none.
  static SessionState& current();
  static SessionState* find_current() noexcept;

  /// Whether the session has not ended; outlives it.
  std::shared_ptr<const bool> alive() const noexcept { return alive_; }
  void end() noexcept { *alive_ = false; }

  /// Models of this session, in order of construction.
  const std::vector<DistributedModelBase*>& models() const noexcept { return models_; }
  void add_model(DistributedModelBase& model) {
    models_.push_back(&model);
    step_looks_.forget();
  }
  void remove_model(DistributedModelBase& model) noexcept {
    std::erase(models_, &model);
    set_traced_on_device(model, false);
  }
  /// Whether the trial run of `model` may compute on the device (smp::trace_on_device()).
  bool is_traced_on_device(const DistributedModelBase& model) const noexcept {
    return std::find(traced_on_device_.begin(), traced_on_device_.end(), &model) !=
           traced_on_device_.end();
  }
  void set_traced_on_device(const DistributedModelBase& model, bool on) {
    std::erase(traced_on_device_, &model);
    if (on) traced_on_device_.push_back(&model);
  }

  /// Calls `follow` at the start of each step, once models are placed, while its owner keeps it.
  void before_steps(std::weak_ptr<const std::function<void()>> follow) {
    before_steps_.push_back(std::move(follow));
  }
  /// Calls these. @throws whatever they throw
  void begin_step();
  /// Calls `follow` at the end of each step that ends well, while its owner keeps it.
  void after_steps(std::weak_ptr<const std::function<void()>> follow) {
    after_steps_.push_back(std::move(follow));
  }
  /// Calls these. @throws whatever they throw
  void end_step();

  /// What this rank does beside its models.
  StepFacts& facts() noexcept { return facts_; }
  SharedWarnings& warnings() noexcept { return warnings_; }
  MasterWeights& masters() noexcept { return masters_; }
  /// On pp_rank 0.
  StepKinds& step_kinds() noexcept { return step_kinds_; }
  StepLooks& step_looks() noexcept { return step_looks_; }
  /// How steps split their arguments, each kind of step once; on rank 0.
  const std::vector<schedule::SplitStep>& splits() const noexcept { return splits_; }
  /// Adds how a step did. @return  false: one like it is there already
  bool add_split(schedule::SplitStep step);
  /// Takes the last step as this rank saw it.
  void take_trace(schedule::StepTrace trace, bool has_gradients) {
    traces_.at(has_gradients ? 1 : 0) = std::move(trace);
    last_has_gradients_ = has_gradients;
    any_has_gradients_ |= has_gradients;
  }
  const schedule::StepTrace& last_trace() const { return traces_.at(last_has_gradients_ ? 1 : 0); }
  /// What pictures of a run show: the last step with gradients, even if evaluations came after it;
  /// the last of all if none has any.
  const schedule::StepTrace& pictured_trace() const {
    return traces_.at(any_has_gradients_ ? 1 : 0);
  }
  /// Of jobs that this one goes on for; fewer than none if it counts from less than it has run.
  std::int64_t earlier_steps() const noexcept { return earlier_steps_; }
  void set_earlier_steps(std::int64_t count) noexcept { earlier_steps_ = count; }
  /// True if steps with gradients have run, and none of their bodies called model.backward(). On
  /// pp_rank 0, where bodies run.
  bool lacks_backward() const noexcept { return any_has_gradients_ && !has_backward_; }
  void note_backward() noexcept { has_backward_ = true; }
  /// The number by which the next step of an optimizer draws; all ranks make as many, while their
  /// steps may differ (evaluations of one replica, replicas without a batch).
  std::int64_t take_rounding() noexcept { return roundings_++; }
  void set_roundings(std::int64_t count) noexcept { roundings_ = count; }
  /// Of the scaler that was updated last; nothing: there is none.
  const std::optional<LossScale>& loss_scale() const noexcept { return loss_scale_; }
  void note_loss_scale(const LossScale& scale) noexcept { loss_scale_ = scale; }

 private:
  std::vector<DistributedModelBase*> models_;
  std::vector<const DistributedModelBase*> traced_on_device_;
  using Followers = std::vector<std::weak_ptr<const std::function<void()>>>;
  static void call(Followers& followers);

  Followers before_steps_, after_steps_;
  std::int64_t earlier_steps_ = 0;
  std::int64_t roundings_ = 0;
  std::optional<LossScale> loss_scale_;
  StepFacts facts_;
  SharedWarnings warnings_;
  MasterWeights masters_;
  StepKinds step_kinds_;
  StepLooks step_looks_;
  std::vector<schedule::SplitStep> splits_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::array<schedule::StepTrace, 2> traces_;  // without gradients, and with them
  bool last_has_gradients_ = false, any_has_gradients_ = false;
  bool has_backward_ = false;
  bool in_hooks_ = false;
};

}  // namespace smp
