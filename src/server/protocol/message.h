// server/protocol/message.h: what the servers of one pipeline tell each other, one type for each
// kind of message (paper App. B). How they look on the wire is the business of message_encoder.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "server/protocol/execution_modes.h"
#include "server/protocol/ids.h"
#include "server/protocol/note.h"
#include "server/protocol/order_key.h"
#include "server/protocol/settings.h"
#include "server/protocol/tensor_flags.h"
#include "smp/detail/call.h"
#include "smp/rank.h"

namespace smp::server {

/// An exception on its way to another rank.
struct Failure {
  PpRank rank;  ///< where it was thrown
  std::string text;
  std::uint8_t type = 0;  ///< what it is caught by, see remote_exception.h
  bool of_input = false;  ///< nothing ran: an argument was promised by a call that failed
};

/// Where a call stands in the program: enough to give what it calls the keys that one process
/// would.
struct CallPosition {
  OrderKey caller;               ///< of the call that makes this one; empty: the body
  std::uint32_t ordinal = 0;     ///< of this call within its caller
  std::uint64_t random_key = 0;  ///< hash of `caller`, kept beside it because it is asked for often
};

/// One output of a request, kept by the rank that runs it. Requests are named by who made them.
struct OutputName {
  PpRank owner;       ///< that has it
  RequestId request;  ///< of the caller, who is the same for all that is passed on
  std::uint32_t output = 0;
};

/// An output of a request that goes to another rank unasked, because it did in the steps before:
/// there it is an input of later requests, which name it (static_mode and fast_mode).
struct SendAhead {
  std::uint32_t output = 0;
  PpRank to;
  std::uint32_t times = 1;  ///< that requests there take it; it goes once
  friend bool operator==(const SendAhead&, const SendAhead&) = default;
};

/// A tensor of a request that comes from where it was made instead of with the request.
struct PromisedInput {
  std::uint32_t index = 0;  ///< among the request's tensors, where an undefined one stands
  OutputName source = {};   ///< of a forward; gradients come unasked
  bool ahead = false;       ///< it comes unasked: SendAhead
  bool shared = false;      ///< other requests take it as well: it is not to be written to
  std::vector<at::Tensor> tensors = {};  ///< once it came, as take_forms() left it
  Note forms = {};
  bool unusual = false;  ///< PassedOn::unusual
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
  std::vector<PromisedInput> promised = {};  ///< of the arguments
  bool keep_outputs = false;                 ///< they may be asked for, until ReleaseOutputs
  bool withhold_outputs = false;             ///< they need not come with the answer
  /// Of the caller's requests to one rank that run one after the other; 0: it waits for each.
  std::uint64_t row = 0;
  std::uint32_t place = 0;  ///< in that row; a request with large tensors may be overtaken
  std::vector<SendAhead> ahead = {};     ///< of its outputs
  std::vector<RequestId> releases = {};  ///< ReleaseOutputs that travels along
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
  Note hooked;         ///< of each argument: '\1' if the module registered a hook on it; or empty
  Note withheld = {};  ///< what the outputs look like that did not come (output_shapes.h); or empty
  Note inner = {};     ///< of each output: '\1' if others were computed from it; or empty
};

/// Where one of the gradients goes that a backward request computes.
struct GradientRoute {
  std::uint32_t gradient = 0;  ///< of which input of the execution
  PpRank to;
  RequestId consumer;       ///< a backward request of the same caller to that rank
  std::uint32_t index = 0;  ///< PromisedInput::index
};

/// Of a backward that is asked for before its forward has answered (early_backward.h).
struct EarlyStart {
  RequestId forward;         ///< the caller's; it names the record. None: that is known
  std::int32_t output = -1;  ///< which of its results is the loss; -1: gradients come on routes
  double weight = 0;         ///< of the loss: its gradient
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
  std::vector<PromisedInput> promised = {};  ///< of the gradients
  std::vector<GradientRoute> routes = {};    ///< gradients that do not go to the caller
  std::optional<EarlyStart> early = {};
  std::vector<RequestId> releases = {};  ///< ReleaseOutputs that travels along
};

/// Its answer: gradients of the execution's inputs.
struct BackwardResponse {
  RequestId request;
  std::vector<at::Tensor> gradients;
  Note forms;        ///< of the gradients
  Note routed = {};  ///< of each gradient: '\1' if there is one, and it went on its route; or empty
};

/// The answer to either request if an exception left it.
struct ErrorResponse {
  RequestId request;
  Failure failure;
};

/// From the caller of both: an output of an earlier request is a tensor of a later one.
struct PassOn {
  RequestId request;
  std::uint32_t output = 0;
  PpRank to;  ///< the rank that runs the later one; the caller's own: it wants the values
  RequestId consumer;
  std::uint32_t index = 0;  ///< PromisedInput::index
  bool ahead = false;       ///< PassedOn::ahead; such a one is not sent
  std::uint32_t times = 1;  ///< ahead: SendAhead::times
};

/// That output, or a gradient on its route, for request `consumer` of `caller`.
struct PassedOn {
  PpRank caller;
  RequestId consumer;       ///< ahead: the request that made it
  std::uint32_t index = 0;  ///< ahead: of the output
  bool failed = false;      ///< what should have made it threw; the caller is told what
  std::vector<at::Tensor> tensors = {};
  Note forms = {};
  bool gradient = false;    ///< for a backward request; may be undefined: there is none
  bool unusual = false;     ///< an output of a call that ended otherwise than was promised of it
  bool ahead = false;       ///< SendAhead: which request it is for is not known yet
  std::uint32_t times = 1;  ///< ahead: how many requests will take it
  bool shared = false;      ///< said by no sender: who takes it shares it (PromisedInput::shared)
};

/// Outputs of these requests will not be asked for any more.
struct ReleaseOutputs {
  std::vector<RequestId> requests;
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
  bool in_order = false;     ///< back only: microbatches must enter a module of the sender in order
};

/// From pp_rank 0: every rank has summed its gradients; the step is over.
struct StepEnded {
  std::vector<Packet> outputs;  ///< of the body, one a microbatch; empty if they stay there
  std::vector<Note> forms;      ///< of their tensors, one a microbatch
  std::string buffers = {};     ///< BufferCopies::judge()
  /// Nothing was said of this step before (static mode): all microbatches are done, sum your
  /// gradients. Whoever has something to say sends FinishGradients all the same.
  bool replayed = false;
  std::string facts = {};   ///< if replayed: StepTask::facts of pp_rank 0
  bool fastest = false;     ///< of the recorded steps so far: remember the order of your work
  bool keep_order = false;  ///< from the next step on, the one that was remembered
  bool in_order = false;    ///< microbatches must enter some module in order
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
                 PassOn, PassedOn, ReleaseOutputs, ReleaseRecord, ForwardDone, MicrobatchDone,
                 FinishGradients, StepEnded, StepFailed, RankLeft, StallQuestion, StallAnswer>;

}  // namespace smp::server
