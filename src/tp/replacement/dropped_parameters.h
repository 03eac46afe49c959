// tp/replacement/dropped_parameters.h: parameters of modules that were replaced by others with
// parameters of their own (smp/tp/replacement.h): nobody uses them any more.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>
#include <vector>

namespace smp::tp {

/// Remembers, for the process, that nobody uses `parameter` any more. Threads: one at a time.
/// @param name  its path in the model
void note_dropped(const at::Tensor& parameter, std::string name);
/// Returns the path under which the parameter was noted; empty if it was not.
std::string name_of_dropped(const at::Tensor& parameter);
/// Returns the noted parameters that somebody still holds, and their paths.
std::vector<std::pair<at::Tensor, std::string>> held_dropped();

}  // namespace smp::tp
