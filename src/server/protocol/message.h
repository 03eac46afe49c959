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

/// The position of a call in the program. It suffices to give the calls that it makes the keys
/// which they would have in one process.
struct CallPosition {
  OrderKey caller;               ///< of the call that makes this one; empty: the body
  std::uint32_t ordinal = 0;     ///< of this call within its caller
  std::uint64_t random_key = 0;  ///< hash of `caller`, kept beside it because it is asked for often
};

/// One output of a request, kept by the rank that runs it. Requests are named by who made them.
struct OutputName {
  PpRank owner;       ///< the rank that has it
  RequestId request;  ///< of the caller, who is the same for all that is passed on
  std::uint32_t output = 0;
};

/// An output of a request that goes to another rank unasked, because it did in the steps before:
/// there it is an input of later requests, which name it (static_mode and fast_mode).
struct SendAhead {
  std::uint32_t output = 0;
  PpRank to;
  std::uint32_t times = 1;  ///< number of requests there that take it; it is sent once
  friend bool operator==(const SendAhead&, const SendAhead&) = default;
};

/// A tensor of a request that does not come with it, but from the rank that made the tensor.
struct PromisedInput {
  std::uint32_t index = 0;  ///< among the request's tensors, where an undefined one stands
  OutputName source = {};   ///< of a forward; gradients come unasked
  bool ahead = false;       ///< it comes unasked: SendAhead
  bool shared = false;      ///< other requests take it as well: it is not to be written to
  std::vector<at::Tensor> tensors = {};  ///< once it came, as take_forms() left it
  Note forms = {};
  bool unusual = false;  ///< PassedOn::unusual
};

/// Asks the owner of a module to run it.
struct ForwardRequest {
  RequestId request;
  ModuleId module;
  std::uint64_t call = 0;  ///< CallEntry::key
  std::int32_t microbatch = -1;
  double weight = 1;  ///< of the microbatch's loss (smp::microbatch_weight())
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
  /// The number of the row of requests, all of one execution of the caller, which run one after the
  /// other on a rank. 0: the caller waits for each answer instead.
  std::uint64_t row = 0;
  std::uint32_t place = 0;  ///< in that row; a request with large tensors may be overtaken
  std::vector<SendAhead> ahead = {};     ///< of its outputs
  std::vector<RequestId> releases = {};  ///< ReleaseOutputs that travels along
};

/// The answer to a ForwardRequest. Outputs carry no history; those with `requires_grad` belong to
/// the record.
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

/// The destination of one of the gradients that a backward request computes.
struct GradientRoute {
  std::uint32_t gradient = 0;  ///< of which input of the execution
  PpRank to;
  RequestId consumer;       ///< a backward request of the same caller to that rank
  std::uint32_t index = 0;  ///< PromisedInput::index
};

/// The part of a backward request that is sent before its forward has answered (early_backward.h).
struct EarlyStart {
  RequestId forward;         ///< the caller's; it names the record. None: that is known
  std::int32_t output = -1;  ///< which of its results is the loss; -1: gradients come on routes
  double weight = 0;         ///< of the loss: its gradient
};

/// Asks the owner of a record to run backward through it.
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
  bool create_graph = false;             ///< what it computes is to have a record as well
  Note history = {};  ///< if so: of each gradient: '\1' if its sender has a history for it
  /// Where this one ends, because a backward of that record follows, and takes up from there.
  RecordId leaves_rest_to = {};
  /// Whose backwards have left something at the record, for this one.
  std::vector<RecordId> takes_rest_of = {};
};

/// The answer to a BackwardRequest: gradients of the execution's inputs.
struct BackwardResponse {
  RequestId request;
  std::vector<at::Tensor> gradients;
  Note forms;        ///< of the gradients
  Note routed = {};  ///< of each gradient: '\1' if there is one, and it went on its route; or empty
  /// With create_graph: the graph of the gradients. Its inputs are the gradients of the request,
  /// then the inputs of the record that was walked. None: it leads to nothing.
  RecordId record = {};
  Note requires_grad = {};  ///< if there is one: of each gradient: '\1' if it belongs to the record
  Note inner = {};          ///< likewise: '\1' if others were computed from it; or empty
  bool left_rest = false;   ///< there is more, where BackwardRequest::leaves_rest_to said
};

/// The answer to a forward or backward request that has thrown.
struct ErrorResponse {
  RequestId request;
  Failure failure;
};

/// Sent by the caller of two requests to the owner of the earlier one: its output is a tensor of
/// the later one.
struct PassOn {
  RequestId request;
  std::uint32_t output = 0;
  PpRank to;  ///< the rank that runs the later one; the caller's own: it wants the values
  RequestId consumer;
  std::uint32_t index = 0;  ///< PromisedInput::index
  bool ahead = false;       ///< PassedOn::ahead; such a one is not sent
  std::uint32_t times = 1;  ///< ahead: SendAhead::times
};

/// A tensor for request `consumer` of `caller`: the output that PassOn has asked for, or a gradient
/// on its route.
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

/// Says that outputs of these requests will not be asked for any more.
struct ReleaseOutputs {
  std::vector<RequestId> requests;
};

/// Says that a record will not be used any more.
struct ReleaseRecord {
  RecordId record;
};

/// Says that a microbatch's body has reached its first backward.
struct ForwardDone {
  std::int32_t microbatch = -1;
};

/// Says that a microbatch's body has ended.
struct MicrobatchDone {
  std::int32_t microbatch = -1;
};

/// Sent by pp_rank 0: all microbatches are done, so the receiver is to sum its gradients. Sent back
/// to pp_rank 0: they are summed.
struct FinishGradients {
  std::string facts = {};    ///< back only: StepTask::facts of the sender
  std::string buffers = {};  ///< back only: BufferCopies::report()
  bool in_order = false;     ///< back only: microbatches must enter a module of the sender in order
};

/// Sent by pp_rank 0: every rank has summed its gradients, and the step is over.
struct StepEnded {
  std::vector<Packet> outputs;  ///< of the body, one a microbatch; empty if they stay there
  std::vector<Note> forms;      ///< of their tensors, one a microbatch
  std::string buffers = {};     ///< BufferCopies::judge()
  /// True if this is the first control message of the step (static mode): all microbatches are
  /// done, so the receiver is to sum its gradients. A rank that has something to report sends
  /// FinishGradients all the same.
  bool replayed = false;
  std::string facts = {};   ///< if replayed: StepTask::facts of pp_rank 0
  bool fastest = false;     ///< of the recorded steps so far: remember the order of your work
  bool keep_order = false;  ///< from the next step on, the one that was remembered
  bool in_order = false;    ///< microbatches must enter some module in order
};

/// Says that the step failed, and why.
struct StepFailed {
  Failure failure;
};

/// Says that the sender has left the job.
struct RankLeft {};

/// Asks what the receiver waits for, because nothing happens at the sender.
struct StallQuestion {};
/// The answer to a StallQuestion: one line, for people, for each wait of the sender.
struct StallAnswer {
  std::string text;
};

using Message =
    std::variant<ForwardRequest, ForwardResponse, BackwardRequest, BackwardResponse, ErrorResponse,
                 PassOn, PassedOn, ReleaseOutputs, ReleaseRecord, ForwardDone, MicrobatchDone,
                 FinishGradients, StepEnded, StepFailed, RankLeft, StallQuestion, StallAnswer>;

}  // namespace smp::server
