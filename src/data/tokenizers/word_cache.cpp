// data/tokenizers/word_cache.cpp: see the header.
#include "data/tokenizers/word_cache.h"

#include <algorithm>

namespace smp::data {
namespace {

constexpr std::size_t kMostWords = 1 << 16;
constexpr std::size_t kMostWordBytes = 48;

}  // namespace

bool WordCache::append(std::string_view word, std::vector<std::int32_t>& tokens) const {
  const auto found = words_.find(word);
  if (found == words_.end()) return false;
  const auto* const first = tokens_.data() + found->second.begin;
  tokens.insert(tokens.end(), first, first + found->second.size);
  return true;
}

void WordCache::remember(std::string_view word, std::span<const std::int32_t> tokens) {
  if (word.size() > kMostWordBytes) return;
  if (words_.size() == kMostWords) forget_all();
  const Place place{static_cast<std::uint32_t>(tokens_.size()),
                    static_cast<std::uint32_t>(tokens.size())};
  if (words_.emplace(word, place).second)
    tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
}

void WordCache::forget_all() {
  words_.clear();
  tokens_.clear();
}

std::string_view take_word(std::string_view& text) {
  const auto begin = std::min(text.find_first_not_of(' '), text.size());
  const auto end = std::min(text.find(' ', begin), text.size());
  const auto word = text.substr(0, end);
  text.remove_prefix(end);
  return word;
}

}  // namespace smp::data
