// server/running/saved_versions.cpp: copies on write, and versions.
#include "server/running/saved_versions.h"

#include <memory>
#include <optional>

#include "d2d/tensors/tensor_data.h"
#include "server/running/execution_scope.h"
#include "server/values/clone_on_write.h"
#include "server/values/tensor_memory.h"

namespace smp::server {

using torch::autograd::SavedVariableHooks;

namespace {

/// Keeps one saved tensor. Hooks are chosen before the tensor is known, so the others that the call
/// saves come here too.
class SavedTensor final : public SavedVariableHooks {
 public:
  void call_pack_hook(const at::Tensor& tensor) override {
    if (ExecutionScope::current()->may_write_later(tensor)) {
      kept_ = clone_on_write(tensor);
    } else {
      kept_ = d2d::detached(tensor);  // an output that held its own node would never end
      version_ = version_of(tensor);
    }
  }
  at::Tensor call_unpack_hook() override {
    // LibTorch does not look at what hooks keep.
    TORCH_CHECK(!version_ || version_of(kept_) == *version_,
                "one of the variables needed for gradient computation has been modified by an "
                "inplace operation: [",
                kept_.toString(), ' ', kept_.sizes(), "] is at version ", version_of(kept_),
                "; expected version ", version_.value_or(0), " instead.");
    return kept_;
  }

 private:
  at::Tensor kept_;
  std::optional<std::uint32_t> version_;  // nothing: `kept_` is ours alone
};

}  // namespace

std::unique_ptr<SavedVariableHooks> hooks_of_written_tensors() {
  const auto* scope = ExecutionScope::current();
  if (scope == nullptr || !scope->saves_versions()) return nullptr;
  return std::make_unique<SavedTensor>();
}

}  // namespace smp::server
