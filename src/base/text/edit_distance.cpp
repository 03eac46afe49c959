// base/text/edit_distance.cpp: optimal string alignment distance (Damerau–Levenshtein without
// overlaps).
#include "base/text/edit_distance.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"

namespace smp::base {

int edit_distance(std::string_view a, std::string_view b) {
  std::vector<int> before_last, last(b.size() + 1), row(b.size() + 1);
  std::iota(last.begin(), last.end(), 0);
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = static_cast<int>(i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const int replace = last[j - 1] + (a[i - 1] != b[j - 1]);
      row[j] = std::min({replace, last[j] + 1, row[j - 1] + 1});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) row[j] = std::min(row[j], before_last[j - 2] + 1);
    }
    before_last = last;
    last.swap(row);
  }
  return last[b.size()];
}

std::optional<std::string> nearest(std::string_view word,
                                   const std::vector<std::string>& candidates) {
  constexpr std::size_t kLongestWord = 256;  // nobody types more; time is that of its square
  std::optional<std::string> best;
  if (word.size() > kLongestWord) return best;
  int best_distance = std::max<int>(1, static_cast<int>(word.size()) / 3) + 1;
  for (const std::string& candidate : candidates) {
    const auto [shorter, longer] = std::minmax({word.size(), candidate.size()});
    if (longer - shorter >= static_cast<std::size_t>(best_distance)) continue;
    const int distance = edit_distance(word, candidate);
    if (distance < best_distance) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates) {
  const auto match = nearest(word, candidates);
  return match ? concat("; did you mean \"", *match, "\"?") : std::string();
}

}  // namespace smp::base
