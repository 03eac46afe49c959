// d2d/wire/members.h: an ordered set of ranks, and where each stands in it. Threads: any, once
// made.
#pragma once

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "smp/rank.h"

namespace smp::d2d {

/// Ranks in the order in which a wire, a channel or a communicator numbers them.
class Members {
 public:
  Members() = default;
  /// @param name  of the group, for messages
  /// @throws UsageError  a rank is negative or named twice.
  explicit Members(std::vector<GlobalRank> ranks, std::string name = "ranks");
  /// Returns the ranks 0 to `size` - 1.
  static Members all(int size);

  int size() const noexcept { return static_cast<int>(ranks_.size()); }
  const std::vector<GlobalRank>& ranks() const noexcept { return ranks_; }
  GlobalRank operator[](int position) const { return ranks_[static_cast<std::size_t>(position)]; }
  auto begin() const noexcept { return ranks_.begin(); }
  auto end() const noexcept { return ranks_.end(); }
  /// Returns the position of `rank`, or -1.
  int position(GlobalRank rank) const noexcept {
    const auto value = static_cast<std::size_t>(static_cast<unsigned>(rank.value()));
    return value < positions_.size() ? positions_[value] : -1;
  }
  bool contain(GlobalRank rank) const noexcept { return position(rank) >= 0; }
  friend bool operator==(const Members& left, const Members& right) {
    return left.ranks_ == right.ranks_;
  }
  /// The group as text, as in "TP_GROUP {3, 0, 2}".
  const std::string& text() const noexcept { return text_; }
  /// Writes the ranks as in "{3, 0, 2}"; of many the first and the last.
  friend std::ostream& operator<<(std::ostream& out, const Members& members);

 private:
  std::vector<GlobalRank> ranks_;
  std::vector<std::int32_t> positions_;  // by rank; -1: not a member
  std::string text_;
};

}  // namespace smp::d2d
