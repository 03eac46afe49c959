// api/placed_parameters.h: which parameters the session's models have, and which of them are here.
#pragma once

#include <ATen/core/Tensor.h>

#include <unordered_map>

namespace smp {

class Runtime;

/// As of its construction. Threads: the rank's.
class PlacedParameters {
 public:
  /// Of all models of the session, placed or not.
  explicit PlacedParameters(Runtime& runtime);

  /// A model has it.
  [[nodiscard]] bool known(const at::Tensor& tensor) const { return find(tensor) != nullptr; }
  /// A placed model has it, and its values live on another rank.
  [[nodiscard]] bool foreign(const at::Tensor& tensor) const {
    const bool* here = find(tensor);
    return here != nullptr && !*here;
  }

 private:
  const bool* find(const at::Tensor& tensor) const {
    const auto found = here_.find(tensor.unsafeGetTensorImpl());
    return found == here_.end() ? nullptr : &found->second;
  }
  std::unordered_map<const void*, bool> here_;  // by TensorImpl
};

}  // namespace smp
