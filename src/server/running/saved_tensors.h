// server/running/saved_tensors.h: what autograd nodes save for their backward, given to whoever
// wants it (LibTorch's default hooks for saved tensors, which only Python can set).
#pragma once

#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <memory>

namespace smp::server {

/// Takes the tensors that nodes save. Threads: the rank's.
class SavedTensorTaker {
 public:
  virtual ~SavedTensorTaker() = default;
  /// Returns what holds the next tensor in the node's place; nullptr: the node holds it itself.
  virtual std::unique_ptr<torch::autograd::SavedVariableHooks> next() = 0;
};

/// Lets LibTorch ask, from now on and in this process, how each tensor is to be saved: a taker, or
/// saved_versions.h. Does nothing where another library has brought an engine of its own
/// (LibTorch's of Python), and if it was called before. Threads: any.
void hook_saved_tensors();

/// Gives what the running fiber's nodes save to `taker` while it lives; nullptr: to nobody.
/// @throws UnsupportedError  another library has brought an engine of its own.
class SavedTensorScope {
 public:
  explicit SavedTensorScope(SavedTensorTaker* taker);
  ~SavedTensorScope();
  SavedTensorScope(const SavedTensorScope&) = delete;
  SavedTensorScope& operator=(const SavedTensorScope&) = delete;

 private:
  SavedTensorTaker* const outer_;
};

}  // namespace smp::server
