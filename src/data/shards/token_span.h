// data/shards/token_span.h: tokens where they lie, of 16 or 32 bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace smp::data {

/// Tokens in somebody else's memory, aligned to their width.
struct TokenSpan {
  const std::byte* data = nullptr;
  int width = 4;  ///< bytes of a token: 2 or 4, unsigned
  std::int64_t size = 0;

  TokenSpan part(std::int64_t begin, std::int64_t count) const {
    return {data + begin * width, width, count};
  }
  /// Writes all of them to `to`, of an integer type that holds them.
  template <class Integer>
  void copy_to(Integer* to) const {
    if (width == 2) {
      copy_as<std::uint16_t>(to);
    } else {
      copy_as<std::uint32_t>(to);
    }
  }

 private:
  template <class Stored, class Integer>
  void copy_as(Integer* to) const {
    const auto* const from = reinterpret_cast<const Stored*>(data);
    for (std::int64_t i = 0; i < size; ++i) to[i] = static_cast<Integer>(from[i]);
  }
};

}  // namespace smp::data
