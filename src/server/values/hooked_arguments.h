// server/values/hooked_arguments.h: hooks that a module of another rank registered on its
// arguments. They run there, with the gradient of that call; in one process they would run with all
// of the tensor's.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

namespace smp::server {

/// The gradients that the last backward of the call gave for its arguments, one an argument;
/// undefined where there was none.
struct HookedGradients {
  std::vector<at::Tensor> gradients;
};

/// Watches those of `arguments`, tensors of the caller, that `hooked` marks with '\1': a gradient
/// that is not the call's alone is refused when it arrives (UsageError).
/// @param path  the path of the module; must live as long as the process
/// @return what the call's backward has to fill; nullptr: nothing is hooked
[[nodiscard]] std::shared_ptr<HookedGradients> watch_hooked_arguments(
    std::string_view hooked, at::ArrayRef<at::Tensor> arguments, const char* path);

}  // namespace smp::server
