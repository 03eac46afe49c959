// server/message_codec.cpp: headers, and what of a message goes into the body of its frame.
#include "server/message_codec.h"

#include <cstring>
#include <iterator>
#include <limits>
#include <type_traits>
#include <utility>

#include "base/check.h"
#include "server/message.pb.h"

namespace smp::server {
namespace {

/// The numbers are part of the wire format.
enum class Kind : std::uint8_t {
  kForwardRequest = 1,
  kForwardResponse,
  kBackwardRequest,
  kBackwardResponse,
  kErrorResponse,
  kReleaseRecord,
  kForwardDone,
  kMicrobatchDone,
  kFinishGradients,
  kStepEnded,
  kStepFailed,
  kRankLeft,
  kStallQuestion,
  kStallAnswer,
};

// ---- headers -----------------------------------------------------------------------------------
// Plain memory of equal machines, without holes; every one begins with a Start.

struct Start {
  std::int64_t step = 0;
  RequestId request;
  std::int32_t microbatch = -1;
  Kind kind = Kind::kRankLeft;
  std::uint8_t flags = 0;        // each kind has its own
  std::uint16_t long_bytes = 0;  // at the start of the body: what did not fit into the header
};
static_assert(sizeof(Start) == 24);

enum : std::uint8_t {
  kAfterFirstBackward = 1,
  kPlainSettings = 2,  // all are on, or, where they are optional, none are given
  kGrad = 4,
  kKeepGraph = 8,
  kLongKey = 16,     // the caller's key stands in the body
  kNotes = 32,       // so do links and forms
  kOnlyInputs = 64,  // smp::grad()
};

constexpr std::size_t kShortKey = 30;

struct ForwardHeader {
  Start start;
  std::uint64_t call;
  std::uint64_t settings;  // the first 64
  std::uint64_t random_key;
  std::uint64_t requires_grad;  // of the first 64 tensors
  std::int32_t module;
  std::uint32_t ordinal;
  std::uint8_t autocast[kAutocastDevices.size()];  // 0: off, else 1 + dtype
  char key[kShortKey];
};
static_assert(sizeof(ForwardHeader) == 96);

struct RecordHeader {  // of all others that name a record
  Start start;
  RecordId record;
  std::uint64_t requires_grad = 0;  // of a backward request: the first 64 settings
};
static_assert(sizeof(RecordHeader) == 40);

template <class Header>
std::span<const std::byte> bytes_of(const Header& header) {
  static_assert(std::has_unique_object_representations_v<Header>, "holes would be sent");
  return std::as_bytes(std::span(&header, 1));
}

template <class Header>
Header header_of(const d2d::ArrivedFrame& frame) {
  Header header;
  SMP_ASSERT(frame.header.size() == sizeof header, frame.header.size(), " bytes of header");
  std::memcpy(&header, frame.header.data(), sizeof header);
  return header;
}

// ---- flags of tensors --------------------------------------------------------------------------

constexpr std::size_t kFlagsInHeader = 64;

std::uint64_t first_flags(const TensorFlags& flags) {
  std::uint64_t bits = 0;
  for (std::size_t i = 0; i < flags.size() && i < kFlagsInHeader; ++i) {
    bits |= std::uint64_t{flags[i]} << i;
  }
  return bits;
}

void append_further_flags(const TensorFlags& flags, std::string& bytes) {
  for (std::size_t i = kFlagsInHeader; i < flags.size(); ++i) bytes += flags[i] ? '\1' : '\0';
}

TensorFlags flags_of(std::uint64_t first, std::string_view further, std::size_t count) {
  const std::size_t expected = count > kFlagsInHeader ? count - kFlagsInHeader : 0;
  SMP_ASSERT(further.size() == expected, further.size(), " further flags of ", count, " tensors");
  TensorFlags flags;
  for (std::size_t i = 0; i < count; ++i) {
    flags.push_back(i < kFlagsInHeader ? ((first >> i) & 1) != 0
                                       : further[i - kFlagsInHeader] != '\0');
  }
  return flags;
}

// ---- notes about tensors -----------------------------------------------------------------------
// Links and forms stand first of what did not fit into the header, each behind its length.

void append_note(const std::string& note, std::string& bytes) {
  const std::uint64_t size = note.size();
  bytes.append(reinterpret_cast<const char*>(&size), sizeof size);
  bytes += note;
}

void append_notes(const std::string& links, const std::string& forms, Start& start,
                  std::string& bytes) {
  if (links.empty() && forms.empty()) return;
  start.flags |= kNotes;
  append_note(links, bytes);
  append_note(forms, bytes);
}

std::string take_note(std::string_view& bytes) {
  std::uint64_t size = 0;
  SMP_ASSERT(bytes.size() >= sizeof size);
  std::memcpy(&size, bytes.data(), sizeof size);
  bytes.remove_prefix(sizeof size);
  SMP_ASSERT(size <= bytes.size(), "a note of ", size, " bytes in ", bytes.size());
  std::string note(bytes.substr(0, size));
  bytes.remove_prefix(size);
  return note;
}

// ---- bodies ------------------------------------------------------------------------------------

/// `extra`, which is nearly always empty, in front of `bytes`.
class Body {
 public:
  Body(const std::string& extra, const std::string& bytes, Start& start) : view_(bytes) {
    if (extra.empty()) return;
    SMP_REQUIRE_AS(UnsupportedError, extra.size() <= std::numeric_limits<std::uint16_t>::max(),
                   "a module call with more than 60,000 tensors, or nested as deeply, cannot be "
                   "sent to another rank; pack the tensors into fewer");
    start.long_bytes = static_cast<std::uint16_t>(extra.size());
    joined_ = extra + bytes;
    view_ = joined_;
  }
  Body(const Body&) = delete;
  Body& operator=(const Body&) = delete;
  std::string_view view() const { return view_; }

 private:
  std::string joined_;
  std::string_view view_;
};

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

struct SplitBody {
  std::string_view extra;
  std::string_view bytes;
};
SplitBody split_body(const d2d::ArrivedFrame& frame, const Start& start) {
  const auto body = text_of(frame.body);
  SMP_ASSERT(start.long_bytes <= body.size(), start.long_bytes, " of ", body.size(), " bytes");
  return {body.substr(0, start.long_bytes), body.substr(start.long_bytes)};
}

/// What of `settings` does not fit into a header stands in front of everything else.
void append_settings(const Settings& settings, std::string& extra) {
  const auto size = static_cast<std::uint16_t>(settings.further.size());
  SMP_REQUIRE_AS(UnsupportedError, size == settings.further.size(),
                 "a module of more than 500,000 modules and parameters cannot be called on another "
                 "rank; call its parts");
  extra.push_back(static_cast<char>(size & 0xff));
  extra.push_back(static_cast<char>(size >> 8));
  extra += settings.further;
}

Settings take_settings(std::uint64_t first, std::string_view& extra) {
  SMP_ASSERT(extra.size() >= 2, extra.size(), " bytes of settings");
  const auto size = static_cast<std::size_t>(static_cast<unsigned char>(extra[0])) |
                    static_cast<std::size_t>(static_cast<unsigned char>(extra[1])) << 8;
  extra.remove_prefix(2);
  SMP_ASSERT(extra.size() >= size, extra.size(), " of ", size, " bytes of settings");
  Settings settings{false, first, std::string(extra.substr(0, size))};
  extra.remove_prefix(size);
  return settings;
}

// ---- encoding ----------------------------------------------------------------------------------

Start start_of(Kind kind, std::int64_t step, RequestId request = {}, std::int32_t microbatch = -1,
               std::uint8_t flags = 0) {
  return {step, request, microbatch, kind, flags, 0};
}

std::uint8_t flag(bool on, std::uint8_t bit) { return on ? bit : std::uint8_t{0}; }

void post(d2d::Channel& channel, GlobalRank peer, std::span<const std::byte> header,
          std::string_view body = {}, c10::ArrayRef<at::Tensor> tensors = {},
          std::shared_ptr<d2d::Departure> departure = nullptr) {
  channel.send(peer, d2d::Port::kServer, header, body, tensors, std::move(departure));
}

void put_modes(const ExecutionModes& modes, ForwardHeader& header) {
  for (std::size_t i = 0; i < modes.autocast.size(); ++i) {
    const auto& own = modes.autocast[i];
    header.autocast[i] =
        own.enabled ? static_cast<std::uint8_t>(1 + static_cast<int>(own.dtype)) : 0;
  }
}

ExecutionModes modes_of(const ForwardHeader& header) {
  ExecutionModes modes;
  modes.grad = (header.start.flags & kGrad) != 0;
  for (std::size_t i = 0; i < modes.autocast.size(); ++i) {
    auto& own = modes.autocast[i];
    own.enabled = header.autocast[i] != 0;
    if (own.enabled) own.dtype = static_cast<at::ScalarType>(header.autocast[i] - 1);
  }
  return modes;
}

/// A short key goes into the header, a long one into `extra`.
void put_key(const OrderKey& key, ForwardHeader& header, std::string& extra) {
  const auto bytes = key.bytes();
  if (bytes.size() < kShortKey) {
    header.key[0] = static_cast<char>(bytes.size());
    std::memcpy(header.key + 1, bytes.data(), bytes.size());
    return;
  }
  header.start.flags |= kLongKey;
  extra.append(bytes);
}

void send_failure(d2d::Channel& channel, GlobalRank peer, const Start& start,
                  const Failure& failure) {
  wire::Failure stored;
  stored.set_pp_rank(failure.rank.value());
  stored.set_text(failure.text);
  stored.set_type(failure.type);
  post(channel, peer, bytes_of(start), stored.SerializeAsString());
}

void send_outputs(d2d::Channel& channel, GlobalRank peer, std::int64_t step,
                  const StepEnded& message, std::shared_ptr<d2d::Departure> departure) {
  wire::Outputs stored;
  std::vector<at::Tensor> tensors;
  for (std::size_t i = 0; i < message.outputs.size(); ++i) {
    const auto& output = message.outputs[i];
    auto& own = *stored.add_microbatches();
    if (i < message.forms.size()) own.set_forms(message.forms[i]);
    own.set_body(output.bytes);
    own.set_num_tensors(static_cast<std::uint32_t>(output.tensors.size()));
    tensors.insert(tensors.end(), output.tensors.begin(), output.tensors.end());
  }
  stored.set_buffers(message.buffers);
  post(channel, peer, bytes_of(start_of(Kind::kStepEnded, step)), stored.SerializeAsString(),
       tensors, std::move(departure));
}

/// The kinds that are little more than their name.
struct SendRest {
  d2d::Channel& channel;
  GlobalRank peer;
  std::int64_t step;

  template <class Hot>
  void operator()(const Hot& message) const {
    send_message(channel, peer, step, message);
  }
  void operator()(const ErrorResponse& message) const {
    send_failure(channel, peer, start_of(Kind::kErrorResponse, step, message.request),
                 message.failure);
  }
  void operator()(const ReleaseRecord& message) const {
    post(channel, peer,
         bytes_of(RecordHeader{start_of(Kind::kReleaseRecord, step), message.record}));
  }
  void operator()(const ForwardDone& message) const {
    post(channel, peer, bytes_of(start_of(Kind::kForwardDone, step, {}, message.microbatch)));
  }
  void operator()(const MicrobatchDone& message) const {
    post(channel, peer, bytes_of(start_of(Kind::kMicrobatchDone, step, {}, message.microbatch)));
  }
  void operator()(const FinishGradients& message) const {
    std::string body;
    if (!message.facts.empty() || !message.buffers.empty()) append_note(message.facts, body);
    post(channel, peer, bytes_of(start_of(Kind::kFinishGradients, step)), body + message.buffers);
  }
  void operator()(const StepEnded& message) const {
    send_outputs(channel, peer, step, message, nullptr);
  }
  void operator()(const StepFailed& message) const {
    send_failure(channel, peer, start_of(Kind::kStepFailed, step), message.failure);
  }
  void operator()(const RankLeft&) const {
    post(channel, peer, bytes_of(start_of(Kind::kRankLeft, step)));
  }
  void operator()(const StallQuestion&) const {
    post(channel, peer, bytes_of(start_of(Kind::kStallQuestion, step)));
  }
  void operator()(const StallAnswer& message) const {
    post(channel, peer, bytes_of(start_of(Kind::kStallAnswer, step)), message.text);
  }
};

// ---- decoding ----------------------------------------------------------------------------------

ForwardRequest forward_request(d2d::ArrivedFrame&& frame) {
  const auto header = header_of<ForwardHeader>(frame);
  const auto& start = header.start;
  auto [extra, bytes] = split_body(frame, start);
  ForwardRequest message;
  message.request = start.request;
  message.module = ModuleId{header.module};
  message.call = header.call;
  message.microbatch = start.microbatch;
  if ((start.flags & kNotes) != 0) {
    take_note(extra);  // a request has no links
    message.forms = take_note(extra);
  }
  if ((start.flags & kPlainSettings) == 0) {
    message.settings = take_settings(header.settings, extra);
  }
  const auto num_tensors = frame.tensors.size();
  const auto num_further = num_tensors > kFlagsInHeader ? num_tensors - kFlagsInHeader : 0;
  if ((start.flags & kLongKey) != 0) {
    SMP_ASSERT(extra.size() >= num_further);
    const auto key = extra.substr(0, extra.size() - num_further);
    message.position.caller = OrderKey::from_bytes(key);
    extra.remove_prefix(key.size());
  } else {
    const auto size = static_cast<std::size_t>(header.key[0]);
    SMP_ASSERT(size < kShortKey, "an order key of ", size, " bytes");
    message.position.caller = OrderKey::from_bytes({header.key + 1, size});
  }
  message.position.ordinal = header.ordinal;
  message.position.random_key = header.random_key;
  message.after_first_backward = (start.flags & kAfterFirstBackward) != 0;
  message.modes = modes_of(header);
  message.requires_grad = flags_of(header.requires_grad, extra, num_tensors);
  message.arguments = {std::string(bytes), std::move(frame.tensors)};
  return message;
}

ForwardResponse forward_response(d2d::ArrivedFrame&& frame) {
  const auto header = header_of<RecordHeader>(frame);
  auto [extra, bytes] = split_body(frame, header.start);
  ForwardResponse message;
  message.request = header.start.request;
  message.record = header.record;
  if ((header.start.flags & kNotes) != 0) {
    message.links = take_note(extra);
    message.forms = take_note(extra);
  }
  if ((header.start.flags & kPlainSettings) == 0) {
    SMP_ASSERT(extra.size() >= sizeof(std::uint64_t));
    std::uint64_t first = 0;
    std::memcpy(&first, extra.data(), sizeof first);
    extra.remove_prefix(sizeof first);
    message.settings = take_settings(first, extra);
  }
  message.requires_grad = flags_of(header.requires_grad, extra, frame.tensors.size());
  message.result = {std::string(bytes), std::move(frame.tensors)};
  return message;
}

BackwardRequest backward_request(d2d::ArrivedFrame&& frame) {
  const auto header = header_of<RecordHeader>(frame);
  const auto& start = header.start;
  auto extra = text_of(frame.body);
  std::optional<Settings> settings;
  if ((start.flags & kPlainSettings) == 0) settings = take_settings(header.requires_grad, extra);
  return {start.request,
          header.record,
          start.microbatch,
          (start.flags & kAfterFirstBackward) != 0,
          (start.flags & kKeepGraph) != 0,
          std::move(frame.tensors),
          (start.flags & kOnlyInputs) != 0,
          std::string(extra),
          std::move(settings)};
}

FinishGradients finish_gradients(const d2d::ArrivedFrame& frame) {
  auto body = text_of(frame.body);
  if (body.empty()) return {};
  auto facts = take_note(body);
  return {std::move(facts), std::string(body)};
}

Failure failure_of(const d2d::ArrivedFrame& frame) {
  wire::Failure stored;
  SMP_ASSERT(stored.ParseFromArray(frame.body.data(), static_cast<int>(frame.body.size())));
  return {PpRank(stored.pp_rank()), stored.text(), static_cast<std::uint8_t>(stored.type())};
}

StepEnded step_ended(d2d::ArrivedFrame&& frame) {
  wire::Outputs stored;
  SMP_ASSERT(stored.ParseFromArray(frame.body.data(), static_cast<int>(frame.body.size())));
  auto tensor = std::make_move_iterator(frame.tensors.begin());
  auto left = frame.tensors.size();
  StepEnded message;
  message.buffers = std::move(*stored.mutable_buffers());
  for (auto& own : *stored.mutable_microbatches()) {
    SMP_ASSERT(own.num_tensors() <= left);
    left -= own.num_tensors();
    const auto end = tensor + static_cast<std::ptrdiff_t>(own.num_tensors());
    message.outputs.push_back({std::move(*own.mutable_body()), {tensor, end}});
    message.forms.push_back(std::move(*own.mutable_forms()));
    tensor = end;
  }
  SMP_ASSERT(left == 0, left, " tensors too many");
  return message;
}

Message message_of(const Start& start, d2d::ArrivedFrame&& frame) {
  switch (start.kind) {
    case Kind::kForwardRequest:
      return forward_request(std::move(frame));
    case Kind::kForwardResponse:
      return forward_response(std::move(frame));
    case Kind::kBackwardRequest:
      return backward_request(std::move(frame));
    case Kind::kBackwardResponse:
      return BackwardResponse{start.request, std::move(frame.tensors),
                              std::string(text_of(frame.body))};
    case Kind::kErrorResponse:
      return ErrorResponse{start.request, failure_of(frame)};
    case Kind::kReleaseRecord:
      return ReleaseRecord{header_of<RecordHeader>(frame).record};
    case Kind::kForwardDone:
      return ForwardDone{start.microbatch};
    case Kind::kMicrobatchDone:
      return MicrobatchDone{start.microbatch};
    case Kind::kFinishGradients:
      return finish_gradients(frame);
    case Kind::kStepEnded:
      return step_ended(std::move(frame));
    case Kind::kStepFailed:
      return StepFailed{failure_of(frame)};
    case Kind::kRankLeft:
      return RankLeft{};
    case Kind::kStallQuestion:
      return StallQuestion{};
    case Kind::kStallAnswer:
      return StallAnswer{std::string(text_of(frame.body))};
  }
  SMP_ASSERT(false, "a message of kind ", static_cast<int>(start.kind));
}

}  // namespace

void send_message(d2d::Channel& channel, GlobalRank peer, std::int64_t step,
                  const ForwardRequest& message) {
  const auto flags = static_cast<std::uint8_t>(
      flag(message.after_first_backward, kAfterFirstBackward) |
      flag(message.settings.plain, kPlainSettings) | flag(message.modes.grad, kGrad));
  ForwardHeader header{
      start_of(Kind::kForwardRequest, step, message.request, message.microbatch, flags),
      message.call,
      message.settings.first,
      message.position.random_key,
      first_flags(message.requires_grad),
      message.module.value,
      message.position.ordinal,
      {},
      {}};
  put_modes(message.modes, header);
  std::string extra;
  append_notes({}, message.forms, header.start, extra);
  if (!message.settings.plain) append_settings(message.settings, extra);
  put_key(message.position.caller, header, extra);
  append_further_flags(message.requires_grad, extra);
  const Body body(extra, message.arguments.bytes, header.start);
  post(channel, peer, bytes_of(header), body.view(), message.arguments.tensors);
}

void send_message(d2d::Channel& channel, GlobalRank peer, std::int64_t step,
                  const ForwardResponse& message) {
  const auto flags = flag(!message.settings, kPlainSettings);
  RecordHeader header{start_of(Kind::kForwardResponse, step, message.request, -1, flags),
                      message.record, first_flags(message.requires_grad)};
  std::string extra;
  append_notes(message.links, message.forms, header.start, extra);
  if (message.settings) {
    const auto& settings = *message.settings;
    extra.append(reinterpret_cast<const char*>(&settings.first), sizeof settings.first);
    append_settings(settings, extra);
  }
  append_further_flags(message.requires_grad, extra);
  const Body body(extra, message.result.bytes, header.start);
  post(channel, peer, bytes_of(header), body.view(), message.result.tensors);
}

void send_message(d2d::Channel& channel, GlobalRank peer, std::int64_t step,
                  const BackwardRequest& message) {
  const auto flags = static_cast<std::uint8_t>(
      flag(message.after_first_backward, kAfterFirstBackward) |
      flag(message.keep_graph, kKeepGraph) | flag(!message.settings, kPlainSettings) |
      flag(message.only_inputs, kOnlyInputs));
  RecordHeader header{
      start_of(Kind::kBackwardRequest, step, message.request, message.microbatch, flags),
      message.record};
  std::string extra;
  if (message.settings) {
    header.requires_grad = message.settings->first;
    append_settings(*message.settings, extra);
  }
  extra += message.forms;
  post(channel, peer, bytes_of(header), extra, message.gradients);
}

void send_message(d2d::Channel& channel, GlobalRank peer, std::int64_t step,
                  const BackwardResponse& message) {
  post(channel, peer, bytes_of(start_of(Kind::kBackwardResponse, step, message.request)),
       message.forms, message.gradients);
}

void send_message(d2d::Channel& channel, GlobalRank peer, std::int64_t step,
                  const StepEnded& message, std::shared_ptr<d2d::Departure> departure) {
  send_outputs(channel, peer, step, message, std::move(departure));
}

void send_message(d2d::Channel& channel, GlobalRank peer, std::int64_t step,
                  const Message& message) {
  std::visit(SendRest{channel, peer, step}, message);
}

ReceivedMessage decode_message(d2d::ArrivedFrame&& frame) {
  Start start;
  SMP_ASSERT(frame.header.size() >= sizeof start, frame.header.size(), " bytes of header");
  std::memcpy(&start, frame.header.data(), sizeof start);
  return {start.step, message_of(start, std::move(frame))};
}

}  // namespace smp::server
