// server/message.h: what the servers of one pipeline tell each other, one type for each kind of
// message (paper App. B). How they look on the wire is the business of message_codec.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "server/execution_modes.h"
#include "server/ids.h"
#include "server/order_key.h"
#include "server/tensor_flags.h"
#include "smp/call.h"
#include "smp/rank.h"

namespace smp::server {

/// An exception on its way to another rank.
struct Failure {
  PpRank rank;  ///< where it was thrown
  std::string text;
};

/// Where a call stands in the program: enough to give what it calls the keys that one process
/// would.
struct CallPosition {
  OrderKey caller;               ///< of the call that makes this one; empty: the body
  std::uint32_t ordinal = 0;     ///< of this call within its caller
  std::uint64_t random_key = 0;  ///< hash of `caller`, kept beside it because it is asked for often
};

/// Run a module.
struct ForwardRequest {
  RequestId request;
  ModuleId module;
  std::uint64_t call = 0;  ///< CallEntry::key
  std::int32_t microbatch = -1;
  CallPosition position;
  bool after_first_backward = false;  ///< of the microbatch's body
  bool training = true;               ///< what the caller's copy of the module says
  std::uint64_t frozen_hash = 0;      ///< of every parameter's requires_grad at the caller
  ExecutionModes modes;
  TensorFlags requires_grad;  ///< one a tensor
  Packet arguments;
};

/// Its answer. Outputs carry no history; those with `requires_grad` belong to the record.
struct ForwardResponse {
  RequestId request;
  RecordId record;  ///< none: nothing needs a gradient
  TensorFlags requires_grad;
  Packet result;
};

/// Run backward through a record.
struct BackwardRequest {
  RequestId request;
  RecordId record;
  std::int32_t microbatch = -1;
  bool after_first_backward = false;
  bool keep_graph = false;
  std::vector<at::Tensor> gradients;  ///< one an output; undefined where none arrived
};

/// Its answer: gradients of the execution's inputs.
struct BackwardResponse {
  RequestId request;
  std::vector<at::Tensor> gradients;
};

/// The answer to either request if an exception left it.
struct ErrorResponse {
  RequestId request;
  Failure failure;
};

/// A record will not be used any more.
struct ReleaseRecord {
  RecordId record;
};

/// A microbatch's body reached its first backward.
struct ForwardDone {
  std::int32_t microbatch = -1;
};

/// A microbatch's body ended.
struct MicrobatchDone {
  std::int32_t microbatch = -1;
};

/// From pp_rank 0: all microbatches are done, sum your gradients. The same back: they are summed.
struct FinishGradients {};

/// From pp_rank 0: every rank has summed its gradients; the step is over.
struct StepEnded {
  std::vector<Packet> outputs;  ///< of the body, one a microbatch; empty if they stay there
};

/// The step failed.
struct StepFailed {
  Failure failure;
};

/// The sender takes part in nothing any more.
struct RankLeft {};

using Message = std::variant<ForwardRequest, ForwardResponse, BackwardRequest, BackwardResponse,
                             ErrorResponse, ReleaseRecord, ForwardDone, MicrobatchDone,
                             FinishGradients, StepEnded, StepFailed, RankLeft>;

}  // namespace smp::server
