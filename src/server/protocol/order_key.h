// server/protocol/order_key.h: where an execution stands in the order of one process, however the
// ranks interleave (docs/design.md, Order keys).
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace smp::server {

/// The path of ordinals from the step body to an execution: the n-th call that the body makes, the
/// m-th call that that one makes, and so on. Keys of one microbatch compare as those ordinals do,
/// lexicographically: earlier calls are less, and a caller is less than whatever it calls.
///
/// Every ordinal is written so that its bytes tell its length and compare as it does: up to 127 one
/// byte, above that 0x80 + n and n bytes, the highest first. So keys compare by memcmp, and one of
/// depth 15 or less needs no allocation. Threads: a value; no state is shared.
class OrderKey {
 public:
  /// Makes the key of the step's body.
  OrderKey() = default;

  /// Returns the key of this execution's call number `ordinal`, which counts from 0 or 1 as the
  /// caller likes, as long as later calls have higher numbers.
  [[nodiscard]] OrderKey child(std::uint32_t ordinal) const;
  /// Turns this key into that of its call number `ordinal`.
  void append(std::uint32_t ordinal);

  /// The number of ordinals; 0 for the body. Takes time linear in the length.
  [[nodiscard]] std::size_t depth() const noexcept;

  /// The key as bytes for messages, which from_bytes() reads. Valid as long as the key is
  /// unchanged.
  [[nodiscard]] std::string_view bytes() const noexcept { return bytes_; }
  /// Returns the key whose bytes() gave `bytes`. @throws InternalError if there is none.
  [[nodiscard]] static OrderKey from_bytes(std::string_view bytes);

  /// The key as text for messages to people: "body.3.0.12". Of a path of more than 32 ordinals the
  /// middle is left out, as in "body.3.0.(9984 more).1.1".
  [[nodiscard]] std::string text() const;

  // std::string compares its bytes unsigned, and a prefix as less.
  friend bool operator==(const OrderKey&, const OrderKey&) noexcept = default;
  friend std::strong_ordering operator<=>(const OrderKey& left, const OrderKey& right) noexcept {
    return left.bytes_ <=> right.bytes_;
  }

 private:
  explicit OrderKey(std::string bytes) noexcept : bytes_(std::move(bytes)) {}
  std::string bytes_;
};

}  // namespace smp::server
