// samples/ncf/ratings.h: which user took which items, and what is trained and ranked of it
// (He et al., WWW 2017, section 4.1: leave one out, four negatives a positive, ranked among 99
// others).
#pragma once

#include <torch/torch.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace ncf {

/// Pairs and whether they are true.
struct Samples {
  torch::Tensor user, item;  ///< [B] int64
  torch::Tensor label;       ///< [B] float, 1: the user took the item
};

/// Constant after construction; the same on every rank.
class Ratings {
 public:
  static constexpr int kNegatives = 4;  ///< of each positive, in training
  static constexpr int kOthers = 99;    ///< among which a held-out item is ranked

  /// Users take `per_user` items each, most of them of the group to which the user belongs.
  static Ratings generate(std::int64_t users, std::int64_t items, int per_user, std::uint64_t seed);
  /// Lines "user<sep>item<sep>rating<sep>time" with a tab, "::" or a comma between, as MovieLens
  /// writes them (u.data, ratings.dat, ratings.csv with its heading). Every rating counts as a
  /// positive; the latest of a user is held out. Users and items are numbered as they come.
  /// @throws std::runtime_error  naming the file and the line that cannot be read; a user with one
  ///                             item, or one who took nearly all of them.
  static Ratings read(const std::string& path);

  std::int64_t users() const { return static_cast<std::int64_t>(held_out_.size()); }
  std::int64_t items() const { return items_; }
  /// Samples of an epoch: positives and negatives.
  std::size_t size() const { return positives_.size() * (1 + kNegatives); }
  /// Whether `user` took `item`; the held-out one counts.
  bool taken(std::int64_t user, std::int64_t item) const;
  std::int64_t held_out(std::int64_t user) const {
    return held_out_[static_cast<std::size_t>(user)];
  }

  /// Samples by number, each below size(). Negatives depend on epoch, number and seed alone.
  Samples samples(const std::vector<std::size_t>& numbers, std::uint64_t epoch) const;
  /// [users, 1 + kOthers] int64: the held-out item first, then others that the user did not take.
  torch::Tensor candidates(const std::vector<std::int64_t>& users) const;

 private:
  /// Every user's items, in order of time, become positives and what is held out.
  Ratings(std::vector<std::vector<std::int64_t>> by_user, std::int64_t items, std::uint64_t seed);
  std::int64_t not_taken(std::int64_t user, std::uint64_t key) const;

  std::int64_t items_;
  std::uint64_t seed_;
  std::vector<std::vector<std::int64_t>> taken_;  // by user, ascending
  std::vector<std::int64_t> held_out_;            // by user
  std::vector<std::pair<std::int64_t, std::int64_t>> positives_;
};

}  // namespace ncf
