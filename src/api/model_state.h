// api/model_state.h: what a step does with the session's models before it runs.
#pragma once

namespace smp {

class Runtime;

/// Places models that are not placed yet, and tells the server what is frozen.
void prepare_models(Runtime& runtime);

}  // namespace smp
