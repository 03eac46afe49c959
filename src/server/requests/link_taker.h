// server/requests/link_taker.h: finds out at the owner how the outputs of a module hang together,
// so that the caller can make them of what it has. Threads: the rank's; not in a poll.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "server/protocol/tensor_flags.h"
#include "server/values/watched_arguments.h"

namespace smp::server {

/// The data that the caller needs to make linked outputs.
struct LinkedOutputs {
  std::string note;  ///< for follow_links(); empty: nothing is linked, which is the rule
  /// The tensors whose gradients pass through the record, in the order of those that are sent;
  /// undefined where none does. Empty: the outputs as they are.
  std::vector<at::Tensor> recorded;
  TensorFlags inner;  ///< inner_outputs() of all that is sent
};
/// Takes those outputs out of `outputs` that the caller can make of something it has, and adds new
/// values of changed arguments, and tensors that several outputs are views of, at the end.
/// @param path  the path of the module, for messages
/// @param grad  the caller's grad mode
/// @throws UnsupportedError  the module changed an argument in a way that the caller cannot follow
LinkedOutputs take_links(std::vector<at::Tensor>& outputs, const WatchedArguments& arguments,
                         const char* path, bool grad);

}  // namespace smp::server
