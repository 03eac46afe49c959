// server/protocol/order_key.cpp: ordinals as bytes that compare as the ordinals do.
#include "server/protocol/order_key.h"

#include <bit>

#include "base/check.h"

namespace smp::server {
namespace {

constexpr std::uint32_t kMark = 0x80;  // least ordinal, and first byte, that says a length
constexpr std::size_t kMostBytes = sizeof(std::uint32_t);
constexpr std::size_t kMostShown = 32;  // ordinals in a text

std::uint32_t byte_at(std::string_view bytes, std::size_t place) noexcept {
  return static_cast<unsigned char>(bytes[place]);
}

/// Returns the number of bytes of an ordinal whose first byte is `first`.
std::size_t encoded_size(std::uint32_t first) noexcept {
  return first < kMark ? 1 : 1 + (first - kMark);
}

/// Returns the first ordinal of `bytes`, which must be well formed.
std::uint32_t first_ordinal(std::string_view bytes) noexcept {
  const auto size = encoded_size(byte_at(bytes, 0));
  if (size == 1) return byte_at(bytes, 0);
  std::uint32_t ordinal = 0;
  for (std::size_t place = 1; place < size; ++place) ordinal = ordinal << 8 | byte_at(bytes, place);
  return ordinal;
}

/// True if `bytes` begin with an ordinal as append() writes it. Other bytes for the same ordinal
/// would compare as a different key.
bool well_formed(std::string_view bytes) noexcept {
  const auto size = encoded_size(byte_at(bytes, 0));
  if (byte_at(bytes, 0) < kMark) return true;
  if (size < 2 || size > 1 + kMostBytes || size > bytes.size()) return false;
  return byte_at(bytes, 1) != 0 && first_ordinal(bytes) >= kMark;
}

}  // namespace

OrderKey OrderKey::child(std::uint32_t ordinal) const {
  OrderKey result;
  result.bytes_.reserve(bytes_.size() + 1);  // a plain copy would have to grow at once
  result.bytes_ = bytes_;
  result.append(ordinal);
  return result;
}

void OrderKey::append(std::uint32_t ordinal) {
  if (ordinal < kMark) {
    bytes_.push_back(static_cast<char>(ordinal));
    return;
  }
  auto left = (static_cast<std::uint32_t>(std::bit_width(ordinal)) + 7) / 8;
  bytes_.push_back(static_cast<char>(kMark + left));
  while (left-- > 0) bytes_.push_back(static_cast<char>(ordinal >> (8 * left)));
}

std::size_t OrderKey::depth() const noexcept {
  std::size_t result = 0;
  for (std::size_t place = 0; place < bytes_.size(); ++result) {
    place += encoded_size(byte_at(bytes_, place));
  }
  return result;
}

OrderKey OrderKey::from_bytes(std::string_view bytes) {
  for (auto rest = bytes; !rest.empty(); rest.remove_prefix(encoded_size(byte_at(rest, 0)))) {
    SMP_ASSERT(well_formed(rest), "byte ", bytes.size() - rest.size(), " of the order key's ",
               bytes.size(), " is ", byte_at(rest, 0));
  }
  return OrderKey(std::string(bytes));
}

std::string OrderKey::text() const {
  const auto all = depth();
  const auto ends = all > kMostShown ? kMostShown / 2 : all;  // ordinals shown before the gap
  std::string result = "body";
  std::size_t number = 0;
  for (std::string_view rest = bytes_; !rest.empty(); ++number) {
    if (number < ends || number + ends >= all) {
      result += "." + std::to_string(first_ordinal(rest));
    } else if (number == ends) {
      result += ".(" + std::to_string(all - 2 * ends) + " more)";
    }
    rest.remove_prefix(encoded_size(byte_at(rest, 0)));
  }
  return result;
}

}  // namespace smp::server
