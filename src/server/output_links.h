// server/output_links.h: outputs of a remote module that are its arguments, or share memory with
// them or with each other, stay what they are at the caller (docs/design.md, Aliases).
// Threads: the rank's; runs operators of LibTorch, so not in a poll.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

#include <string>
#include <string_view>
#include <vector>

#include "server/tensor_flags.h"

namespace smp::server {

/// The arguments of an execution at its owner: which of them the module changes in place.
class WatchedArguments {
 public:
  explicit WatchedArguments(at::ArrayRef<at::Tensor> tensors);

  struct Change {
    std::size_t argument;
    bool history;  ///< recorded by autograd
  };
  /// After the module has run. @throws UnsupportedError what it did cannot be done at the caller;
  /// `path` is the module's.
  [[nodiscard]] std::vector<Change> changes(const char* path) const;

  at::ArrayRef<at::Tensor> tensors() const noexcept { return tensors_; }

 private:
  struct State {
    std::uint32_t version;
    const void* node;
    const void* memory;
    bool requires_grad;
  };
  static State state_of(const at::Tensor& tensor);

  c10::SmallVector<at::Tensor, 4> tensors_;
  c10::SmallVector<State, 4> states_;
};

/// What linked outputs need at the caller.
struct LinkedOutputs {
  std::string note;  ///< for follow_links(); empty: nothing is linked, which is the rule
  /// Whose gradients pass through the record; undefined: of none. Empty: the outputs as they are.
  std::vector<at::Tensor> recorded;
};
/// Takes those outputs out of `outputs` that the caller can make of something it has, and adds new
/// values of changed arguments, and tensors that several outputs are views of, at the end.
/// @param path  of the module, for messages
/// @param grad  the caller's grad mode
/// @throws UnsupportedError  the module changed an argument in a way that the caller cannot follow
LinkedOutputs take_links(std::vector<at::Tensor>& outputs, const WatchedArguments& arguments,
                         const char* path, bool grad);

/// Copies those of `outputs` that somebody at the owner may write to while they are sent:
/// parameters, buffers and whatever else is no result of a recorded computation and not ours alone.
void copy_what_others_hold(std::vector<at::Tensor>& outputs);

/// At the caller: changes `arguments` as the module did, makes the linked outputs, and drops what
/// was only sent for that. Outputs in `requires_grad` get `node`, which may be nullptr if there are
/// none, as their history, and `node` an input for every tensor of `outputs`.
/// @param path  of the module, for messages
/// @throws UnsupportedError  it changed an argument that shares memory with another one, which
///                           had memory of its own there; or what LibTorch says of the change
void follow_links(std::string_view note, std::vector<at::Tensor>& outputs,
                  at::ArrayRef<at::Tensor> arguments, const TensorFlags& requires_grad,
                  const c10::intrusive_ptr<torch::autograd::Node>& node, const char* path);

}  // namespace smp::server
