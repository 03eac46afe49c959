// data/tokenizers/word_cache.h: the tokens of words that were met before.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace smp::data {

/// Remembers the tokens of some ten thousands of short words. Threads: one at a time.
class WordCache {
 public:
  /// Appends the tokens of `word` to `tokens`; returns false if it does not know them.
  bool append(std::string_view word, std::vector<std::int32_t>& tokens) const;
  /// Remembers the tokens of `word`, unless that is long. Forgets all others when it is full.
  void remember(std::string_view word, std::span<const std::int32_t> tokens);
  void forget_all();

 private:
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view word) const {
      return std::hash<std::string_view>{}(word);
    }
  };
  struct Place {
    std::uint32_t begin;
    std::uint32_t size;
  };

  std::unordered_map<std::string, Place, Hash, std::equal_to<>> words_;
  std::vector<std::int32_t> tokens_;  // of all words
};

/// Takes the first word off `text`, which is not empty: spaces, and what follows up to the next
/// space.
std::string_view take_word(std::string_view& text);

}  // namespace smp::data
