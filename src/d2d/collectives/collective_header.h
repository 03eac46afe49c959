// d2d/collectives/collective_header.h: the header of a frame of a collective. Threads: any.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "d2d/collectives/collective_inbox.h"

namespace smp::d2d {

/// The header of a message: a fixed part, and the detail of the call.
class CollectiveHeader {
 public:
  static constexpr std::size_t kLongestDetail = 64 * sizeof(std::int64_t);  ///< any shape

  /// @param sent_before  messages that this rank has sent to the receiver
  CollectiveHeader(const CollectiveId& id, CollectivePhase phase, const CollectiveCall& call,
                   std::uint64_t sent_before);
  /// Makes a header that says that the `sent` messages before were all.
  static CollectiveHeader leaving(std::uint64_t sent);
  /// Makes a header that says that the sender will not finish collectives of `epoch`.
  static CollectiveHeader epoch_failed(std::uint64_t epoch, std::uint64_t sent_before);
  /// Reads a header. @throws InternalError  the bytes are none.
  static CollectiveHeader read(std::span<const std::byte> bytes);

  std::span<const std::byte> bytes() const noexcept { return {bytes_.data(), size_}; }

  CollectiveId id() const noexcept;
  CollectivePhase phase() const noexcept;
  CollectiveCall call() const;
  /// CollectiveMessage::sent_before
  std::uint32_t sent_before() const noexcept;

 private:
  CollectiveHeader() = default;
  struct Fixed {
    std::uint64_t group;
    std::uint64_t lane;
    std::uint64_t epoch;
    std::uint64_t number;
    std::int32_t root;
    std::int32_t dtype;
    std::uint8_t kind;
    std::uint8_t phase;
    std::uint16_t zero;
    std::uint32_t sent_before;
  };
  Fixed fixed() const noexcept;

  std::array<std::byte, sizeof(Fixed) + kLongestDetail> bytes_;
  std::size_t size_ = 0;
};

}  // namespace smp::d2d
