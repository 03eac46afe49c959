// server/running/saved_versions.h: what autograd saves of tensors that a module writes in forward,
// while other microbatches go through it (docs/design.md, State of modules).
#pragma once

#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <memory>

namespace smp::server {

/// Returns what is to hold the next tensor that autograd saves, if the running fiber is inside a
/// call of a module that microbatches enter in order; else nullptr. Then it is saved as the call
/// has left it: of tensors that a later call may write in place (buffers, members, parameters that
/// this step has written) a copy, made when somebody writes. In one process the backward of a
/// microbatch is over before the next one writes; here it may follow the forward of several.
/// Everything else is saved, and checked for writes, as ever. Called by saved_tensors.h, once that
/// hooks. Threads: any.
std::unique_ptr<torch::autograd::SavedVariableHooks> hooks_of_written_tensors();

}  // namespace smp::server
