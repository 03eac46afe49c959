// server/values/watched_arguments.h: which of its arguments a module changes in place
// (docs/design.md, Aliases). Threads: the rank's.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <string>
#include <vector>

#include "module/node_pointer.h"
#include "server/values/output_links.h"

namespace smp::server {

/// The arguments of an execution at its owner, as they are before the module runs.
class WatchedArguments {
 public:
  explicit WatchedArguments(at::ArrayRef<at::Tensor> tensors);

  /// Returns the arguments that the module has changed; called after it has run. @throws
  /// UnsupportedError what it did cannot be done at the caller; `path` is the module's.
  [[nodiscard]] std::vector<ChangedArgument> changes(const char* path) const;

  /// True if the module has changed any argument, in whatever way.
  [[nodiscard]] bool any_changed() const;

  /// Returns one byte an argument: '\1' if the module registered a hook on it, else '\0'. Empty if
  /// there is no such hook.
  [[nodiscard]] std::string hooked() const;

  at::ArrayRef<at::Tensor> tensors() const noexcept { return tensors_; }

 private:
  struct State {
    std::uint32_t version;
    NodePointer<torch::autograd::Node> node;
    const void* memory;
    bool requires_grad;
    std::uint32_t output;  ///< of the node
    friend bool operator==(const State&, const State&) = default;
  };
  static State state_of(const at::Tensor& tensor);

  c10::SmallVector<at::Tensor, 4> tensors_;
  c10::SmallVector<State, 4> states_;
};

}  // namespace smp::server
