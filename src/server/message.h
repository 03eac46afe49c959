// server/message.h: what the servers of one pipeline tell each other, one type for each kind of
// message (paper App. B). How they look on the wire is the business of message_encoder.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "server/execution_modes.h"
#include "server/ids.h"
#include "server/note.h"
#include "server/order_key.h"
#include "server/settings.h"
#include "server/tensor_flags.h"
#include "smp/call.h"
#include "smp/rank.h"

namespace smp::server {

/// An exception on its way to another rank.
struct Failure {
  PpRank rank;  ///< where it was thrown
  std::string text;
  std::uint8_t type = 0;  ///< what it is caught by, see remote_exception.h
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
  Settings settings;                  ///< of the caller's copy of the module and all below it
  ExecutionModes modes;
  TensorFlags requires_grad;  ///< one a tensor
  Note forms;                 ///< of the arguments (tensor_forms.h); nearly always empty
  Packet arguments;
};

/// Its answer. Outputs carry no history; those with `requires_grad` belong to the record.
struct ForwardResponse {
  RequestId request;
  RecordId record;  ///< none: nothing needs a gradient
  TensorFlags requires_grad;
  Note links;  ///< what outputs are at the caller (output_links.h); nearly always empty
  Note forms;  ///< of the outputs (tensor_forms.h); nearly always empty
  Packet result;
  std::optional<Settings> settings;  ///< not plain; if the execution changed them
  Note hooked;  ///< of each argument: '\1' if the module registered a hook on it; or empty
};

/// Run backward through a record.
struct BackwardRequest {
  RequestId request;
  RecordId record;
  std::int32_t microbatch = -1;
  bool after_first_backward = false;
  bool keep_graph = false;
  std::vector<at::Tensor> gradients;  ///< one an output; undefined where none arrived
  bool only_inputs = false;           ///< smp::grad(): leaves get nothing
  Note forms;                         ///< of the gradients
  std::optional<Settings> settings;   ///< not plain; the caller's, if changed since the forward
};

/// Its answer: gradients of the execution's inputs.
struct BackwardResponse {
  RequestId request;
  std::vector<at::Tensor> gradients;
  Note forms;  ///< of the gradients
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
struct FinishGradients {
  std::string facts = {};    ///< back only: StepTask::facts of the sender
  std::string buffers = {};  ///< back only: BufferCopies::report()
};

/// From pp_rank 0: every rank has summed its gradients; the step is over.
struct StepEnded {
  std::vector<Packet> outputs;  ///< of the body, one a microbatch; empty if they stay there
  std::vector<Note> forms;      ///< of their tensors, one a microbatch
  std::string buffers = {};     ///< BufferCopies::judge()
};

/// The step failed.
struct StepFailed {
  Failure failure;
};

/// The sender takes part in nothing any more.
struct RankLeft {};

/// Nothing happens at the sender: what do you wait for?
struct StallQuestion {};
/// What the sender waits for: a line for each of its waits, for people.
struct StallAnswer {
  std::string text;
};

using Message =
    std::variant<ForwardRequest, ForwardResponse, BackwardRequest, BackwardResponse, ErrorResponse,
                 ReleaseRecord, ForwardDone, MicrobatchDone, FinishGradients, StepEnded, StepFailed,
                 RankLeft, StallQuestion, StallAnswer>;

}  // namespace smp::server
