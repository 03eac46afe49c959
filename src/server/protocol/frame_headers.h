// server/protocol/frame_headers.h: the fixed-size part of every frame: plain memory of equal
// machines, without holes, which is copied as it is. Numbers and layouts are the wire format.
// Threads: any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>

#include "base/check.h"
#include "d2d/channel/channel.h"
#include "server/protocol/execution_modes.h"
#include "server/protocol/ids.h"

namespace smp::server::wire {

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
  kPassOn,
  kPassedOn,
  kReleaseOutputs,
};

/// The beginning of every header; messages of the rare kinds have nothing else.
struct Start {
  std::int64_t step = 0;
  RequestId request;
  std::int32_t microbatch = -1;
  Kind kind = Kind::kRankLeft;
  std::uint8_t flags = 0;  ///< of Flag; each kind has its own
  /// At the start of the body: what did not fit into the header. kCounted: the body begins with its
  /// size, 8 bytes, since it is too long for this field.
  std::uint16_t long_bytes = 0;
  static constexpr std::uint16_t kCounted = 0xffff;
};
static_assert(sizeof(Start) == 24);

enum Flag : std::uint8_t {
  kAfterFirstBackward = 1,
  kPlainSettings = 2,  ///< all are on, or, where they are optional, none are given
  kGrad = 4,
  kEarly = 4,  ///< of a backward request: a note about its early start stands in the body
  kKeepGraph = 8,
  kLongKey = 16,      ///< the caller's key stands in the body
  kCreateGraph = 16,  ///< of a backward request and its answer: notes about the graph in the body
  kNotes = 32,        ///< notes (links, forms and others) stand in the body
  kRest =
      32,  ///< of a backward request: a note about it stands in the body; of its answer: left_rest
  kOnlyInputs = 64,  ///< smp::grad()
  kPromises = 128,   ///< a note about them stands in the body
};
/// Flags of a forward request, in its note about promises.
enum PromiseFlag : std::uint8_t { kKeepOutputs = 1, kWithholdOutputs = 2 };
/// Flags of a StepEnded message.
enum StepEndedFlag : std::uint8_t { kReplayed = 1, kFastest = 2, kKeepOrder = 4, kInOrder = 8 };
/// Flags of a PassedOn message, in its body.
enum PassedOnFlag : std::uint8_t { kFailed = 1, kGradient = 2, kUnusual = 4, kAhead = 8 };

inline constexpr std::size_t kFlagsInHeader = 64;  ///< of settings, or of tensors
inline constexpr std::size_t kShortKey = 30;       ///< bytes, the first of which is the length

struct ForwardHeader {
  Start start;
  std::uint64_t call;
  std::uint64_t settings;  ///< the first
  std::uint64_t random_key;
  std::uint64_t requires_grad;  ///< of the first tensors
  std::uint64_t weight;         ///< of the microbatch's loss: the bits of a double
  std::int32_t module;
  std::uint32_t ordinal;
  std::uint8_t autocast[kAutocastDevices.size()];  ///< 0: off, else 1 + dtype
  char key[kShortKey];
};
static_assert(sizeof(ForwardHeader) == 104);

/// The header of all other messages that name a record.
struct RecordHeader {
  Start start;
  RecordId record;
  std::uint64_t requires_grad = 0;  ///< of the first tensors; of a backward request: settings
};
static_assert(sizeof(RecordHeader) == 40);

/// Returns the bytes of `header`; valid as long as it.
template <class Header>
std::span<const std::byte> bytes_of(const Header& header) {
  static_assert(std::has_unique_object_representations_v<Header>, "holes would be sent");
  return std::as_bytes(std::span(&header, 1));
}

/// Returns a copy of the frame's header. @throws InternalError  it has another size.
template <class Header>
Header header_of(const d2d::ArrivedFrame& frame) {
  Header header;
  SMP_ASSERT(frame.header.size() == sizeof header, frame.header.size(), " bytes of header");
  std::memcpy(&header, frame.header.data(), sizeof header);
  return header;
}

}  // namespace smp::server::wire
