// api/model/model_state.h: what a step does with the session's models before it runs.
#pragma once

#include <functional>
#include <string>
#include <typeinfo>

namespace smp {

class DistributedModelBase;
struct SessionParts;
struct StepPreview;

/// The step that is about to begin.
struct ComingStep {
  const StepPreview* preview = nullptr;  ///< on pp_rank 0; nullptr where there is none to trace
  const std::type_info* body = nullptr;  ///< StepBody::target_type(), on every rank
  bool grad = true;                      ///< the caller's grad mode
  bool together = true;                  ///< all replicas begin it
};

/// Places models that are not placed yet and that the step uses, lets optimizers follow what the
/// program has added to them, and looks at the weights as they are before the step. With the first
/// step all are placed but those that its trial run has nothing to do with: these wait for a step
/// whose own trial run does, so that what their modules keep is known.
void prepare_models(const SessionParts& session, const ComingStep& step);

/// After the body of `microbatch`. @throws UsageError  code in it wrote parameters.
void refuse_written_weights(const SessionParts& session, int microbatch);

/// Gives the buffers of placed models the values that they have in the first replica, of those that
/// have a batch (smp::Join): statistics of one without stand still. All ranks that run a stage call
/// it. @throws as dp::take_values_of
void take_buffers_of_first(const SessionParts& session);

/// Calls `bring` once: when `model`, or one that shares parts with it, is placed and this rank has
/// freed what belongs to others, before the delayed tensors that stay get their values; at once if
/// the model is placed already. On all ranks that place it, in the order of these calls.
void before_values(DistributedModelBase& model, std::function<void()> bring);

/// Returns PlannedModel::simulation of a placed model.
const std::string& simulation_of(const DistributedModelBase& model);

/// Sets what training adds to the weights, for the prediction of memory; before placement.
/// @param optimizer_ratio  bytes of optimizer state over bytes of trained weights
void set_optimizer_ratio(DistributedModelBase& model, double optimizer_ratio);

}  // namespace smp
