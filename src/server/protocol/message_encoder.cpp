// server/protocol/message_encoder.cpp: what of a message goes into the header, and what into the
// body.
#include "server/protocol/message_encoder.h"

#include <bit>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "server/protocol/frame_extra.h"
#include "server/protocol/frame_headers.h"
#include "server/protocol/number_list.h"

namespace smp::server {
namespace {

wire::Start start_of(wire::Kind kind, std::int64_t step, RequestId request = {},
                     std::int32_t microbatch = -1, std::uint8_t flags = 0) {
  return {step, request, microbatch, kind, flags, 0};
}

std::uint8_t flag(bool on, std::uint8_t bit) { return on ? bit : std::uint8_t{0}; }

void post(d2d::Channel& channel, GlobalRank peer, std::span<const std::byte> header,
          std::string_view body = {}, c10::ArrayRef<at::Tensor> tensors = {},
          const std::shared_ptr<d2d::Departure>& departure = nullptr) {
  channel.send(peer, d2d::Port::kServer, header, body, tensors, departure);
}

void put_modes(const ExecutionModes& modes, wire::ForwardHeader& header) {
  for (std::size_t i = 0; i < modes.autocast.size(); ++i) {
    const auto& own = modes.autocast[i];
    header.autocast[i] =
        own.enabled ? static_cast<std::uint8_t>(1 + static_cast<int>(own.dtype)) : 0;
  }
}

template <class Id>  // of a request or a record
void put(NumberWriter& out, Id id) {
  out.put(id.slot);
  out.put(id.generation);
}

std::string text_of_promises(std::uint8_t flags, const ForwardRequest& message) {
  std::string text;
  NumberWriter out(text);
  out.put(flags);
  out.put(static_cast<std::int64_t>(message.row));
  out.put(message.place);
  out.put(static_cast<std::int64_t>(message.promised.size()));
  for (const auto& input : message.promised) {
    out.put(input.index);
    out.put(input.source.owner.value());
    put(out, input.source.request);
    out.put(input.source.output);
    out.put(input.ahead ? 1 : 0);
  }
  out.put(static_cast<std::int64_t>(message.ahead.size()));
  for (const auto& way : message.ahead) {
    out.put(way.output);
    out.put(way.to.value());
    out.put(way.times);
  }
  for (const auto& request : message.releases) put(out, request);
  return text;
}

void put_promises(const ForwardRequest& message, wire::Start& start, wire::ExtraWriter& extra) {
  const auto flags =
      static_cast<std::uint8_t>(flag(message.keep_outputs, wire::kKeepOutputs) |
                                flag(message.withhold_outputs, wire::kWithholdOutputs));
  if (flags == 0 && message.row == 0 && message.promised.empty() && message.releases.empty()) {
    return;
  }
  start.flags |= wire::kPromises;
  extra.put_note(text_of_promises(flags, message));
}

void put_routes(const BackwardRequest& message, wire::Start& start, wire::ExtraWriter& body) {
  if (message.promised.empty() && message.routes.empty() && message.releases.empty()) return;
  std::string text;
  NumberWriter out(text);
  out.put(static_cast<std::int64_t>(message.promised.size()));
  for (const auto& input : message.promised) out.put(input.index);
  out.put(static_cast<std::int64_t>(message.routes.size()));
  for (const auto& route : message.routes) {
    out.put(route.gradient);
    out.put(route.to.value());
    put(out, route.consumer);
    out.put(route.index);
  }
  for (const auto& request : message.releases) put(out, request);
  start.flags |= wire::kPromises;
  body.put_note(text);
}

void put_early(const EarlyStart& early, wire::Start& start, wire::ExtraWriter& body) {
  start.flags |= wire::kEarly;
  std::string text;
  NumberWriter out(text);
  put(out, early.forward);
  out.put(early.output);
  text.append(reinterpret_cast<const char*>(&early.weight), sizeof early.weight);
  body.put_note(text);
}

void put_rest(const BackwardRequest& message, wire::Start& start, wire::ExtraWriter& body) {
  if (!message.leaves_rest_to && message.takes_rest_of.empty()) return;
  std::string text;
  NumberWriter out(text);
  put(out, message.leaves_rest_to);
  for (const auto& record : message.takes_rest_of) put(out, record);
  start.flags |= wire::kRest;
  body.put_note(text);
}

void put_graph(const BackwardResponse& message, wire::Start& start, wire::ExtraWriter& body) {
  if (!message.record) return;
  start.flags |= wire::kCreateGraph;
  std::string text;
  NumberWriter out(text);
  put(out, message.record);
  body.put_note(text);
  body.put_note(message.requires_grad);
  body.put_note(message.inner);
}

// ---- the rare kinds ----------------------------------------------------------------------------

void send_failure(d2d::Channel& channel, GlobalRank peer, const wire::Start& start,
                  const Failure& failure) {
  std::string body;
  NumberWriter out(body);
  out.put(failure.rank.value());
  out.put(failure.type);
  out.put(failure.of_input ? 1 : 0);
  body += failure.text;
  post(channel, peer, wire::bytes_of(start), body);
}

void send_outputs(d2d::Channel& channel, GlobalRank peer, std::int64_t step,
                  const StepEnded& message, const std::shared_ptr<d2d::Departure>& departure) {
  const auto flags = static_cast<std::uint8_t>(
      flag(message.replayed, wire::kReplayed) | flag(message.fastest, wire::kFastest) |
      flag(message.keep_order, wire::kKeepOrder) | flag(message.in_order, wire::kInOrder));
  std::string counts;  // of tensors
  NumberWriter out(counts);
  for (const auto& output : message.outputs) {
    out.put(static_cast<std::int64_t>(output.tensors.size()));
  }
  wire::ExtraWriter body;
  body.put_note(message.buffers);
  body.put_note(message.facts);
  body.put_note(counts);
  std::vector<at::Tensor> tensors;
  for (std::size_t i = 0; i < message.outputs.size(); ++i) {
    const auto& output = message.outputs[i];
    body.put_note(output.bytes);
    body.put_note(i < message.forms.size() ? message.forms[i].view() : std::string_view());
    tensors.insert(tensors.end(), output.tensors.begin(), output.tensors.end());
  }
  post(channel, peer, wire::bytes_of(start_of(wire::Kind::kStepEnded, step, {}, -1, flags)),
       body.bytes(), tensors, departure);
}

/// Sends any kind of message. Kinds with an overload of send_message() go to it; most of the others
/// have few fields.
struct SendRest {
  d2d::Channel& channel;
  GlobalRank peer;
  std::int64_t step;

  template <class Hot>
  void operator()(const Hot& message) const {
    send_message(channel, peer, step, message);
  }
  void operator()(const ErrorResponse& message) const {
    send_failure(channel, peer, start_of(wire::Kind::kErrorResponse, step, message.request),
                 message.failure);
  }
  void operator()(const PassOn& message) const {
    std::string body;
    NumberWriter out(body);
    out.put(message.output);
    out.put(message.to.value());
    put(out, message.consumer);
    out.put(message.index);
    post(channel, peer, wire::bytes_of(start_of(wire::Kind::kPassOn, step, message.request)), body);
  }
  void operator()(const PassedOn& message) const {
    std::string body;
    NumberWriter out(body);
    out.put(message.caller.value());
    out.put(message.index);
    out.put(flag(message.failed, wire::kFailed) | flag(message.gradient, wire::kGradient) |
            flag(message.unusual, wire::kUnusual) | flag(message.ahead, wire::kAhead));
    if (message.ahead) out.put(message.times);
    body += message.forms;
    post(channel, peer, wire::bytes_of(start_of(wire::Kind::kPassedOn, step, message.consumer)),
         body, message.tensors);
  }
  void operator()(const ReleaseOutputs& message) const {
    std::string body;
    NumberWriter out(body);
    for (const auto& request : message.requests) put(out, request);
    post_start(wire::Kind::kReleaseOutputs, -1, body);
  }
  void operator()(const ReleaseRecord& message) const {
    post(channel, peer,
         wire::bytes_of(
             wire::RecordHeader{start_of(wire::Kind::kReleaseRecord, step), message.record}));
  }
  void operator()(const ForwardDone& message) const {
    post_start(wire::Kind::kForwardDone, message.microbatch);
  }
  void operator()(const MicrobatchDone& message) const {
    post_start(wire::Kind::kMicrobatchDone, message.microbatch);
  }
  void operator()(const FinishGradients& message) const {
    wire::ExtraWriter body;
    if (!message.facts.empty() || !message.buffers.empty()) body.put_note(message.facts);
    body.put_rest(message.buffers);
    post_start(wire::Kind::kFinishGradients, -1, body.bytes(),
               flag(message.in_order, wire::kInOrder));
  }
  void operator()(const StepEnded& message) const {
    send_outputs(channel, peer, step, message, nullptr);
  }
  void operator()(const StepFailed& message) const {
    send_failure(channel, peer, start_of(wire::Kind::kStepFailed, step), message.failure);
  }
  void operator()(const RankLeft&) const { post_start(wire::Kind::kRankLeft); }
  void operator()(const StallQuestion&) const { post_start(wire::Kind::kStallQuestion); }
  void operator()(const StallAnswer& message) const {
    post_start(wire::Kind::kStallAnswer, -1, message.text);
  }

 private:
  void post_start(wire::Kind kind, std::int32_t microbatch = -1, std::string_view body = {},
                  std::uint8_t flags = 0) const {
    post(channel, peer, wire::bytes_of(start_of(kind, step, {}, microbatch, flags)), body);
  }
};

}  // namespace

// ---- the kinds of every call -------------------------------------------------------------------

void send_message(d2d::Channel& channel, GlobalRank peer, std::int64_t step,
                  const ForwardRequest& message) {
  const auto flags = static_cast<std::uint8_t>(
      flag(message.after_first_backward, wire::kAfterFirstBackward) |
      flag(message.settings.plain, wire::kPlainSettings) | flag(message.modes.grad, wire::kGrad));
  wire::ForwardHeader header{
      start_of(wire::Kind::kForwardRequest, step, message.request, message.microbatch, flags),
      message.call,
      message.settings.first,
      message.position.random_key,
      wire::first_flags(message.requires_grad),
      std::bit_cast<std::uint64_t>(message.weight),
      message.module.value,
      message.position.ordinal,
      {},
      {}};
  put_modes(message.modes, header);
  wire::ExtraWriter extra;
  extra.put_notes({{}, message.forms, {}}, header.start);
  put_promises(message, header.start, extra);
  if (!message.settings.plain) extra.put_further_settings(message.settings);
  extra.put_key(message.position.caller, header);
  extra.put_further_flags(message.requires_grad);
  const wire::Body body(extra, message.arguments.bytes, header.start);
  post(channel, peer, wire::bytes_of(header), body.view(), message.arguments.tensors);
}

void send_message(d2d::Channel& channel, GlobalRank peer, std::int64_t step,
                  const ForwardResponse& message) {
  const auto flags = flag(!message.settings, wire::kPlainSettings);
  wire::RecordHeader header{
      start_of(wire::Kind::kForwardResponse, step, message.request, -1, flags), message.record,
      wire::first_flags(message.requires_grad)};
  wire::ExtraWriter extra;
  extra.put_notes({message.links, message.forms, message.hooked, message.withheld, message.inner},
                  header.start);
  if (message.settings) extra.put_settings(*message.settings);
  extra.put_further_flags(message.requires_grad);
  const wire::Body body(extra, message.result.bytes, header.start);
  post(channel, peer, wire::bytes_of(header), body.view(), message.result.tensors);
}

void send_message(d2d::Channel& channel, GlobalRank peer, std::int64_t step,
                  const BackwardRequest& message) {
  const auto flags = static_cast<std::uint8_t>(
      flag(message.after_first_backward, wire::kAfterFirstBackward) |
      flag(message.keep_graph, wire::kKeepGraph) | flag(!message.settings, wire::kPlainSettings) |
      flag(message.only_inputs, wire::kOnlyInputs));
  wire::RecordHeader header{
      start_of(wire::Kind::kBackwardRequest, step, message.request, message.microbatch, flags),
      message.record};
  wire::ExtraWriter body;
  if (message.settings) {
    header.requires_grad = message.settings->first;
    body.put_further_settings(*message.settings);
  }
  put_routes(message, header.start, body);
  if (message.early) put_early(*message.early, header.start, body);
  if (message.create_graph) {
    header.start.flags |= wire::kCreateGraph;
    body.put_note(message.history);
  }
  put_rest(message, header.start, body);
  body.put_rest(message.forms);
  post(channel, peer, wire::bytes_of(header), body.bytes(), message.gradients);
}

void send_message(d2d::Channel& channel, GlobalRank peer, std::int64_t step,
                  const BackwardResponse& message) {
  auto start = start_of(wire::Kind::kBackwardResponse, step, message.request);
  start.flags |= flag(message.left_rest, wire::kRest);
  if (message.routed.empty() && !message.record) {
    return post(channel, peer, wire::bytes_of(start), message.forms, message.gradients);
  }
  wire::ExtraWriter body;
  if (!message.routed.empty()) {
    start.flags |= wire::kPromises;
    body.put_note(message.routed);
  }
  put_graph(message, start, body);
  body.put_rest(message.forms);
  post(channel, peer, wire::bytes_of(start), body.bytes(), message.gradients);
}

void send_message(d2d::Channel& channel, GlobalRank peer, std::int64_t step,
                  const StepEnded& message, const std::shared_ptr<d2d::Departure>& departure) {
  send_outputs(channel, peer, step, message, departure);
}

void send_message(d2d::Channel& channel, GlobalRank peer, std::int64_t step,
                  const Message& message) {
  std::visit(SendRest{channel, peer, step}, message);
}

}  // namespace smp::server
