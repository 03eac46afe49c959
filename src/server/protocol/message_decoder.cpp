// server/protocol/message_decoder.cpp: one function for each kind that is more than its name.
#include "server/protocol/message_decoder.h"

#include <bit>
#include <cstring>
#include <iterator>
#include <optional>
#include <string>
#include <utility>

#include "base/check.h"
#include "server/protocol/frame_extra.h"
#include "server/protocol/frame_headers.h"
#include "server/protocol/number_list.h"

namespace smp::server {
namespace {

ExecutionModes modes_of(const wire::ForwardHeader& header) {
  ExecutionModes modes;
  modes.grad = (header.start.flags & wire::kGrad) != 0;
  for (std::size_t i = 0; i < modes.autocast.size(); ++i) {
    auto& own = modes.autocast[i];
    own.enabled = header.autocast[i] != 0;
    if (own.enabled) own.dtype = static_cast<at::ScalarType>(header.autocast[i] - 1);
  }
  return modes;
}

constexpr std::size_t kAny = std::size_t{1} << 32;

/// Reads a count of things that have at least one number each in what is left of a note.
std::size_t count_of(NumberReader& in) {
  return in.index(in.rest().size() / sizeof(std::int64_t) + 1);
}

template <class Id>
Id id_of(NumberReader& in) {
  const auto slot = static_cast<std::uint32_t>(in.index(kAny));
  return {slot, static_cast<std::uint32_t>(in.index(kAny))};
}

RequestId request_of(NumberReader& in) { return id_of<RequestId>(in); }

/// Reads for how many requests an output goes ahead, which is one at least.
std::uint32_t times_of(NumberReader& in) {
  const auto times = static_cast<std::uint32_t>(in.index(kAny));
  SMP_ASSERT(times > 0, "an output that goes ahead for nobody");
  return times;
}

/// Reads all request ids that are left.
std::vector<RequestId> requests_of(NumberReader& in) {
  std::vector<RequestId> requests;
  while (!in.at_end()) requests.push_back(request_of(in));
  return requests;
}

void take_promises(std::string_view text, ForwardRequest& message) {
  NumberReader in(text);
  const auto flags = in.index(4);
  message.keep_outputs = (flags & wire::kKeepOutputs) != 0;
  message.withhold_outputs = (flags & wire::kWithholdOutputs) != 0;
  message.row = static_cast<std::uint64_t>(in.get());
  message.place = static_cast<std::uint32_t>(in.index(kAny));
  for (auto left = count_of(in); left > 0; --left) {
    auto& input = message.promised.emplace_back();
    input.index = static_cast<std::uint32_t>(in.index(kAny));
    input.source.owner = PpRank(static_cast<int>(in.index(kAny)));
    input.source.request = request_of(in);
    input.source.output = static_cast<std::uint32_t>(in.index(kAny));
    input.ahead = in.index(2) == 1;
  }
  for (auto left = count_of(in); left > 0; --left) {
    const auto output = static_cast<std::uint32_t>(in.index(kAny));
    const PpRank to(static_cast<int>(in.index(kAny)));
    message.ahead.push_back({output, to, times_of(in)});
  }
  message.releases = requests_of(in);
}

PassOn pass_on(const d2d::ArrivedFrame& frame, const wire::Start& start) {
  NumberReader in(wire::text_of(frame.body));
  PassOn message;
  message.request = start.request;
  message.output = static_cast<std::uint32_t>(in.index(kAny));
  message.to = PpRank(static_cast<int>(in.index(kAny)));
  message.consumer = request_of(in);
  message.index = static_cast<std::uint32_t>(in.index(kAny));
  return message;
}

PassedOn passed_on(d2d::ArrivedFrame&& frame, const wire::Start& start) {
  const auto body = wire::text_of(frame.body);
  NumberReader in(body);
  PassedOn message;
  message.consumer = start.request;
  message.caller = PpRank(static_cast<int>(in.index(kAny)));
  message.index = static_cast<std::uint32_t>(in.index(kAny));
  const auto flags = in.index(16);
  message.failed = (flags & wire::kFailed) != 0;
  message.gradient = (flags & wire::kGradient) != 0;
  message.unusual = (flags & wire::kUnusual) != 0;
  message.ahead = (flags & wire::kAhead) != 0;
  if (message.ahead) message.times = times_of(in);
  message.forms = std::string(in.rest());
  message.tensors = std::move(frame.tensors);
  return message;
}

ReleaseOutputs release_outputs(const d2d::ArrivedFrame& frame) {
  NumberReader in(wire::text_of(frame.body));
  return {requests_of(in)};
}

ForwardRequest forward_request(d2d::ArrivedFrame&& frame) {
  const auto header = wire::header_of<wire::ForwardHeader>(frame);
  const auto& start = header.start;
  auto [extra, bytes] = wire::split_body(frame, start);
  ForwardRequest message;
  message.request = start.request;
  message.module = ModuleId{header.module};
  message.call = header.call;
  message.microbatch = start.microbatch;
  message.weight = std::bit_cast<double>(header.weight);
  message.forms = extra.take_notes(start).forms;
  if ((start.flags & wire::kPromises) != 0) take_promises(extra.take_note(), message);
  if ((start.flags & wire::kPlainSettings) == 0) {
    message.settings = extra.take_further_settings(header.settings);
  }
  message.position = {extra.take_key(header, frame.tensors.size()), header.ordinal,
                      header.random_key};
  message.after_first_backward = (start.flags & wire::kAfterFirstBackward) != 0;
  message.modes = modes_of(header);
  message.requires_grad = extra.take_flags(header.requires_grad, frame.tensors.size());
  message.arguments = {std::string(bytes), std::move(frame.tensors)};
  return message;
}

ForwardResponse forward_response(d2d::ArrivedFrame&& frame) {
  const auto header = wire::header_of<wire::RecordHeader>(frame);
  const auto& start = header.start;
  auto [extra, bytes] = wire::split_body(frame, start);
  ForwardResponse message;
  message.request = start.request;
  message.record = header.record;
  auto notes = extra.take_notes(start);
  message.links = std::move(notes.links);
  message.forms = std::move(notes.forms);
  message.hooked = std::move(notes.hooked);
  message.withheld = std::move(notes.withheld);
  message.inner = std::move(notes.inner);
  if ((start.flags & wire::kPlainSettings) == 0) message.settings = extra.take_settings();
  message.requires_grad = extra.take_flags(header.requires_grad, frame.tensors.size());
  message.result = {std::string(bytes), std::move(frame.tensors)};
  return message;
}

void take_routes(std::string_view text, BackwardRequest& message) {
  NumberReader in(text);
  message.promised.resize(in.index(message.gradients.size() + 1));
  for (auto& input : message.promised) {
    input.index = static_cast<std::uint32_t>(in.index(message.gradients.size()));
  }
  for (auto left = count_of(in); left > 0; --left) {
    auto& route = message.routes.emplace_back();
    route.gradient = static_cast<std::uint32_t>(in.index(kAny));
    route.to = PpRank(static_cast<int>(in.index(kAny)));
    route.consumer = request_of(in);
    route.index = static_cast<std::uint32_t>(in.index(kAny));
  }
  message.releases = requests_of(in);
}

EarlyStart early_start(std::string_view text) {
  NumberReader in(text);
  EarlyStart early;
  early.forward = request_of(in);
  early.output = static_cast<std::int32_t>(in.get());
  SMP_ASSERT(in.rest().size() == sizeof early.weight, in.rest().size(), " bytes of weight");
  std::memcpy(&early.weight, in.rest().data(), sizeof early.weight);
  return early;
}

void take_rest(std::string_view text, BackwardRequest& message) {
  NumberReader in(text);
  message.leaves_rest_to = id_of<RecordId>(in);
  while (!in.at_end()) message.takes_rest_of.push_back(id_of<RecordId>(in));
}

BackwardRequest backward_request(d2d::ArrivedFrame&& frame) {
  const auto header = wire::header_of<wire::RecordHeader>(frame);
  const auto& start = header.start;
  wire::ExtraReader body(wire::text_of(frame.body));
  std::optional<Settings> settings;
  if ((start.flags & wire::kPlainSettings) == 0) {
    settings = body.take_further_settings(header.requires_grad);
  }
  BackwardRequest message{start.request,
                          header.record,
                          start.microbatch,
                          (start.flags & wire::kAfterFirstBackward) != 0,
                          (start.flags & wire::kKeepGraph) != 0,
                          std::move(frame.tensors),
                          (start.flags & wire::kOnlyInputs) != 0,
                          {},
                          std::move(settings)};
  if ((start.flags & wire::kPromises) != 0) take_routes(body.take_note(), message);
  if ((start.flags & wire::kEarly) != 0) message.early = early_start(body.take_note());
  message.create_graph = (start.flags & wire::kCreateGraph) != 0;
  if (message.create_graph) message.history = body.take_note();
  if ((start.flags & wire::kRest) != 0) take_rest(body.take_note(), message);
  message.forms = std::string(body.rest());
  return message;
}

BackwardResponse backward_response(d2d::ArrivedFrame&& frame, const wire::Start& start) {
  wire::ExtraReader body(wire::text_of(frame.body));
  BackwardResponse message{start.request, std::move(frame.tensors), {}};
  message.left_rest = (start.flags & wire::kRest) != 0;
  if ((start.flags & wire::kPromises) != 0) message.routed = body.take_note();
  if ((start.flags & wire::kCreateGraph) != 0) {
    const auto record = body.take_note();
    NumberReader in(record);
    message.record.slot = static_cast<std::uint32_t>(in.index(kAny));
    message.record.generation = static_cast<std::uint32_t>(in.index(kAny));
    message.requires_grad = body.take_note();
    message.inner = body.take_note();
  }
  message.forms = std::string(body.rest());
  return message;
}

FinishGradients finish_gradients(const d2d::ArrivedFrame& frame, const wire::Start& start) {
  wire::ExtraReader body(wire::text_of(frame.body));
  FinishGradients message;
  message.in_order = (start.flags & wire::kInOrder) != 0;
  if (body.rest().empty()) return message;
  message.facts = body.take_note();
  message.buffers = std::string(body.rest());
  return message;
}

Failure failure_of(const d2d::ArrivedFrame& frame) {
  NumberReader in(wire::text_of(frame.body));
  Failure failure;
  failure.rank = PpRank(static_cast<int>(in.index(kAny)));
  failure.type = static_cast<std::uint8_t>(in.index(256));
  failure.of_input = in.index(2) == 1;
  failure.text = std::string(in.rest());
  return failure;
}

StepEnded step_ended(d2d::ArrivedFrame&& frame, const wire::Start& start) {
  wire::ExtraReader body(wire::text_of(frame.body));
  StepEnded message;
  message.replayed = (start.flags & wire::kReplayed) != 0;
  message.fastest = (start.flags & wire::kFastest) != 0;
  message.keep_order = (start.flags & wire::kKeepOrder) != 0;
  message.in_order = (start.flags & wire::kInOrder) != 0;
  message.buffers = body.take_note();
  message.facts = body.take_note();
  const auto counts = body.take_note();
  auto tensor = std::make_move_iterator(frame.tensors.begin());
  auto left = frame.tensors.size();
  for (NumberReader in(counts); !in.at_end();) {
    const auto count = in.index(left + 1);
    left -= count;
    const auto end = tensor + static_cast<std::ptrdiff_t>(count);
    auto bytes = body.take_note();
    message.outputs.push_back({std::move(bytes), {tensor, end}});
    message.forms.push_back(body.take_note());
    tensor = end;
  }
  SMP_ASSERT(left == 0, left, " tensors too many");
  return message;
}

Message message_of(const wire::Start& start, d2d::ArrivedFrame&& frame) {
  switch (start.kind) {
    case wire::Kind::kForwardRequest:
      return forward_request(std::move(frame));
    case wire::Kind::kForwardResponse:
      return forward_response(std::move(frame));
    case wire::Kind::kBackwardRequest:
      return backward_request(std::move(frame));
    case wire::Kind::kBackwardResponse:
      return backward_response(std::move(frame), start);
    case wire::Kind::kErrorResponse:
      return ErrorResponse{start.request, failure_of(frame)};
    case wire::Kind::kPassOn:
      return pass_on(frame, start);
    case wire::Kind::kPassedOn:
      return passed_on(std::move(frame), start);
    case wire::Kind::kReleaseOutputs:
      return release_outputs(frame);
    case wire::Kind::kReleaseRecord:
      return ReleaseRecord{wire::header_of<wire::RecordHeader>(frame).record};
    case wire::Kind::kForwardDone:
      return ForwardDone{start.microbatch};
    case wire::Kind::kMicrobatchDone:
      return MicrobatchDone{start.microbatch};
    case wire::Kind::kFinishGradients:
      return finish_gradients(frame, start);
    case wire::Kind::kStepEnded:
      return step_ended(std::move(frame), start);
    case wire::Kind::kStepFailed:
      return StepFailed{failure_of(frame)};
    case wire::Kind::kRankLeft:
      return RankLeft{};
    case wire::Kind::kStallQuestion:
      return StallQuestion{};
    case wire::Kind::kStallAnswer:
      return StallAnswer{std::string(wire::text_of(frame.body))};
  }
  SMP_ASSERT(false, "a message of kind ", static_cast<int>(start.kind));
}

}  // namespace

ReceivedMessage decode_message(d2d::ArrivedFrame&& frame) {
  wire::Start start;
  SMP_ASSERT(frame.header.size() >= sizeof start, frame.header.size(), " bytes of header");
  std::memcpy(&start, frame.header.data(), sizeof start);
  return {start.step, message_of(start, std::move(frame))};
}

}  // namespace smp::server
