// d2d/collectives/collective_header.cpp: see the header.
#include "d2d/collectives/collective_header.h"

#include <cstring>
#include <string>

#include "base/check.h"

namespace smp::d2d {

CollectiveHeader::CollectiveHeader(const CollectiveId& id, CollectivePhase phase,
                                   const CollectiveCall& call, std::uint64_t sent_before) {
  const Fixed fixed{id.lane.group,
                    id.lane.lane,
                    id.lane.epoch,
                    id.number,
                    call.root,
                    call.dtype,
                    static_cast<std::uint8_t>(call.kind),
                    static_cast<std::uint8_t>(phase),
                    0,
                    static_cast<std::uint32_t>(sent_before)};
  const std::size_t detail = call.detail.size();
  SMP_ASSERT(detail <= kLongestDetail, "a detail of ", detail, " bytes");
  std::memcpy(bytes_.data(), &fixed, sizeof fixed);
  std::memcpy(bytes_.data() + sizeof fixed, call.detail.data(), detail);
  size_ = sizeof fixed + detail;
}

CollectiveHeader CollectiveHeader::leaving(std::uint64_t sent) {
  CollectiveCall call;
  call.kind = CollectiveKind::kLeaving;
  return {{{}, sent}, CollectivePhase::kExchange, call, sent};
}

CollectiveHeader CollectiveHeader::epoch_failed(std::uint64_t epoch, std::uint64_t sent_before) {
  CollectiveCall call;
  call.kind = CollectiveKind::kEpochFailed;
  return {{{0, 0, epoch}, 0}, CollectivePhase::kExchange, call, sent_before};
}

CollectiveHeader CollectiveHeader::read(std::span<const std::byte> bytes) {
  CollectiveHeader header;
  SMP_REQUIRE_AS(InternalError,
                 bytes.size() >= sizeof(Fixed) && bytes.size() <= header.bytes_.size(),
                 "a message of a collective is malformed: its header has ", bytes.size(),
                 " bytes; do all ranks run the same build?");
  std::memcpy(header.bytes_.data(), bytes.data(), bytes.size());
  header.size_ = bytes.size();
  const Fixed fixed = header.fixed();
  SMP_REQUIRE_AS(InternalError,
                 fixed.kind <= static_cast<std::uint8_t>(CollectiveKind::kEpochFailed) &&
                     fixed.phase <= static_cast<std::uint8_t>(CollectivePhase::kResult),
                 "a message of a collective is malformed: kind ", int{fixed.kind}, ", phase ",
                 int{fixed.phase}, "; do all ranks run the same build?");
  return header;
}

CollectiveHeader::Fixed CollectiveHeader::fixed() const noexcept {
  Fixed fixed;
  std::memcpy(&fixed, bytes_.data(), sizeof fixed);
  return fixed;
}

CollectiveId CollectiveHeader::id() const noexcept {
  const Fixed read = fixed();
  return {{read.group, read.lane, read.epoch}, read.number};
}

std::uint32_t CollectiveHeader::sent_before() const noexcept { return fixed().sent_before; }

CollectivePhase CollectiveHeader::phase() const noexcept {
  return static_cast<CollectivePhase>(fixed().phase);
}

CollectiveCall CollectiveHeader::call() const {
  const Fixed read = fixed();
  const auto* const detail = reinterpret_cast<const char*>(bytes_.data()) + sizeof read;
  return {static_cast<CollectiveKind>(read.kind), read.root, read.dtype,
          std::string(detail, size_ - sizeof read)};
}

}  // namespace smp::d2d
