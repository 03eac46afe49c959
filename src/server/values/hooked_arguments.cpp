// server/values/hooked_arguments.cpp: a hook of ours on each, which compares.
#include "server/values/hooked_arguments.h"

#include "base/check.h"

namespace smp::server {
namespace {

[[noreturn]] void refuse(std::size_t argument, const char* path) {
  throw UsageError(base::concat(
      "module '", path, "' lives on another rank and registered a hook on tensor ", argument,
      " of its arguments, which its caller uses elsewhere too, or hooks itself. In one process the "
      "hook gets the sum of all gradients, here it gets that of the call alone. Hook a tensor of "
      "the module's own (x.view_as(x)), or place the module with its caller"));
}

}  // namespace

std::shared_ptr<HookedGradients> watch_hooked_arguments(std::string_view hooked,
                                                        at::ArrayRef<at::Tensor> arguments,
                                                        const char* path) {
  if (hooked.empty()) return nullptr;
  auto given = std::make_shared<HookedGradients>();
  for (std::size_t i = 0; i < arguments.size() && i < hooked.size(); ++i) {
    if (hooked[i] == '\0' || !arguments[i].defined() || !arguments[i].requires_grad()) continue;
    arguments[i].register_hook([given, i, path](const at::Tensor& gradient) {
      const bool alone = i < given->gradients.size() && given->gradients[i].is_same(gradient);
      if (!alone) refuse(i, path);
      return gradient;
    });
  }
  return given;
}

}  // namespace smp::server
