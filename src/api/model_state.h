// api/model_state.h: what a step does with the session's models before it runs.
#pragma once

namespace smp {

class Runtime;
struct StepPreview;

/// Places models that are not placed yet, and tells the server what is frozen.
/// @param preview  of the step that is about to begin; nullptr where there is none to trace
void prepare_models(Runtime& runtime, const StepPreview* preview);

}  // namespace smp
