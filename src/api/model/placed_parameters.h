// api/model/placed_parameters.h: which parameters the session's models have, and which of them are
// here.
#pragma once

#include <ATen/core/Tensor.h>

#include <unordered_map>

namespace smp {

class SessionState;

/// The parameters of the session's models, as they are when it is constructed. Threads: the rank's.
class PlacedParameters {
 public:
  /// Of all models of the session, placed or not.
  explicit PlacedParameters(const SessionState& state);

  /// True if a model has the tensor.
  [[nodiscard]] bool known(const at::Tensor& tensor) const { return find(tensor) != nullptr; }
  /// True if a placed model has the tensor, and its values live on another rank.
  [[nodiscard]] bool foreign(const at::Tensor& tensor) const {
    const auto* known = find(tensor);
    return known != nullptr && !known->here;
  }
  /// True if a placed model has the tensor, and its values live here.
  [[nodiscard]] bool placed(const at::Tensor& tensor) const {
    const auto* known = find(tensor);
    return known != nullptr && known->placed && known->here;
  }

 private:
  struct Known {
    bool here = true;
    bool placed = false;
  };
  const Known* find(const at::Tensor& tensor) const {
    const auto found = known_.find(tensor.unsafeGetTensorImpl());
    return found == known_.end() ? nullptr : &found->second;
  }
  std::unordered_map<const void*, Known> known_;  // by TensorImpl
};

}  // namespace smp
