// smp/text/token_ids.h: the tokens that end a text.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <utility>
#include <vector>

namespace smp {

/// Tokens of which each has the same meaning: none, one, or several, as the three with which Llama
/// 3's chat models end. It is a value, made of a number, of numbers in braces or of a vector.
class TokenIds {
 public:
  TokenIds() = default;
  TokenIds(std::int64_t id) : ids_{id} {}
  TokenIds(std::initializer_list<std::int64_t> ids) : ids_(ids) {}
  TokenIds(std::vector<std::int64_t> ids) : ids_(std::move(ids)) {}

  bool empty() const noexcept { return ids_.empty(); }
  /// Returns them in the order in which they were given.
  const std::vector<std::int64_t>& ids() const noexcept { return ids_; }
  bool operator==(const TokenIds&) const = default;

 private:
  std::vector<std::int64_t> ids_;
};

}  // namespace smp
