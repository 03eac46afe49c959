// api/model/model_state.h: what a step does with the session's models before it runs.
#pragma once

#include <string>

namespace smp {

class DistributedModelBase;
class Runtime;
struct StepPreview;

/// Places models that are not placed yet, and notes the state of the weights before the step.
/// @param preview  the step that is about to begin; nullptr if there is none to trace
void prepare_models(Runtime& runtime, const StepPreview* preview);

/// Checks that the body of `microbatch`, which has ended, wrote no parameters.
/// @throws UsageError  it did.
void refuse_written_weights(Runtime& runtime, int microbatch);

/// Gives the buffers of placed models the values that they have in the first replica that has a
/// batch (smp::Join): the statistics of a replica without one stand still. All ranks that run a
/// stage call it. @throws as dp::take_values_of
void take_buffers_of_first(Runtime& runtime);

/// Returns PlannedModel::simulation of a placed model.
const std::string& simulation_of(const DistributedModelBase& model);

/// Sets what training adds to the weights, for the prediction of memory; before placement.
/// @param optimizer_ratio  bytes of optimizer state over bytes of trained weights
void set_optimizer_ratio(DistributedModelBase& model, double optimizer_ratio);

}  // namespace smp
