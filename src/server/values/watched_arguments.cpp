// server/values/watched_arguments.cpp: by version counter, history and memory.
#include "server/values/watched_arguments.h"

#include <torch/csrc/autograd/cpp_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <typeinfo>

#include "base/check.h"
#include "server/values/tensor_layout.h"
#include "server/values/tensor_memory.h"

namespace smp::server {
namespace {

/// The number of the output that a tensor's hook is of; none: it is of another kind. LibTorch does
/// not export what a cast would ask.
std::optional<std::uint32_t> output_of(torch::autograd::FunctionPreHook& hook) {
  constexpr std::string_view kOfTensors = "N5torch8autograd24CppFunctionTensorPreHookE";
  if (typeid(hook).name() != kOfTensors) return std::nullopt;
  return static_cast<torch::autograd::CppFunctionTensorPreHook&>(hook).value_idx_;
}

/// True if a hook was registered on output `number` of the node. A tensor that is changed in place
/// forgets its hooks; the node that it hung on before keeps them.
bool has_hook(torch::autograd::Node& node, std::uint32_t number) {
  const auto& hooks = node.tensor_pre_hooks();
  return std::any_of(hooks.begin(), hooks.end(),
                     [number](const auto& hook) { return output_of(*hook) == number; });
}

}  // namespace

WatchedArguments::WatchedArguments(at::ArrayRef<at::Tensor> tensors)
    : tensors_(tensors.begin(), tensors.end()) {
  for (const auto& tensor : tensors_) states_.push_back(state_of(tensor));
}

WatchedArguments::State WatchedArguments::state_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return {};
  return {tensor.is_inference() ? 0 : static_cast<std::uint32_t>(tensor._version()),
          tensor.requires_grad() ? tensor.grad_fn() : nullptr, memory_of(tensor),
          tensor.requires_grad(), static_cast<std::uint32_t>(tensor.output_nr())};
}

std::string WatchedArguments::hooked() const {
  std::string hooked;
  bool any = false;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const auto& tensor = tensors_[i];
    const auto* meta =
        tensor.defined() ? torch::autograd::impl::get_autograd_meta(tensor) : nullptr;
    const auto& before = states_[i].node;
    const bool own = (meta != nullptr && meta->cpp_hooks_list_ != nullptr) ||
                     (before != nullptr && has_hook(*before, states_[i].output));
    hooked += own ? '\1' : '\0';
    any |= own;
  }
  return any ? hooked : std::string();
}

bool WatchedArguments::any_changed() const {
  return !std::equal(
      tensors_.begin(), tensors_.end(), states_.begin(),
      [](const auto& tensor, const auto& state) { return state_of(tensor) == state; });
}

std::vector<ChangedArgument> WatchedArguments::changes(const char* path) const {
  std::vector<ChangedArgument> found;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const auto& tensor = tensors_[i];
    const auto now = state_of(tensor);
    const auto& before = states_[i];
    if (now == before) continue;
    const bool first = std::none_of(tensors_.begin(), tensors_.begin() + static_cast<long>(i),
                                    [&](const auto& other) { return other.is_same(tensor); });
    if (!first) continue;
    SMP_REQUIRE_AS(
        UnsupportedError,
        tensor.has_storage() && now.memory == before.memory && now.version != before.version &&
            !(now.requires_grad && now.node == nullptr) &&
            !(before.requires_grad && !now.requires_grad),
        path, " changed tensor ", i, " of its arguments in place, shape ", tensor.sizes(),
        ", in a way that its caller on another rank would not see (its size, its memory, or "
        "whether it requires grad). Use an out-of-place operation, or place this module with its "
        "caller");
    const bool history = now.node != before.node;
    SMP_REQUIRE_AS(UnsupportedError,
                   !history || !has_shared_elements(tensor.sizes(), tensor.strides()), path,
                   " changed tensor ", i, " of its arguments in place, shape ", tensor.sizes(),
                   ", of which several elements are one in memory (expand(), unfold(), "
                   "as_strided()), so its caller on another rank cannot give each its gradient. "
                   "Pass clone() of it, or place this module with its caller");
    found.push_back({i, history});
  }
  return found;
}

}  // namespace smp::server
