// tp/slices/channel_share.h: which channels of a layer each rank of a TP_GROUP computes.
//
// T tensor-parallel ranks, A attention heads, G heads of keys and values, D head size.
#pragma once

#include <cstdint>
#include <vector>

namespace smp::tp {

/// The channels of each rank, as a value: rank r computes `count` of them, from `first[r]` on.
/// Channels beyond the whole are padding: zeros.
struct ChannelShare {
  std::int64_t count = 0;
  std::int64_t unit = 1;  ///< `count` is a multiple of it: channels that stay together
  std::vector<std::int64_t> first;

  /// Returns `units` times `unit` channels in T equal parts, the last ones padded.
  static ChannelShare even(std::int64_t units, std::int64_t unit, int ranks);
  /// True if parts follow one another, so that each rank can hold the parameters of its own
  /// channels and no others.
  bool cut() const noexcept;
  /// Returns the positions in the whole of all channels of all ranks, one rank after another.
  std::vector<std::int64_t> places() const;
};

/// Deals attention heads to ranks: rank j computes heads j·c to (j+1)·c - 1 of queries, c =
/// ceil(A/T), and with them the heads of keys and values that they need; A/G query heads share one
/// of those. If T divides G, or every head has keys of its own, each rank has its own; else some
/// have the same.
class HeadShare {
 public:
  /// @param heads  A, a multiple of @param key_heads  G
  HeadShare(std::int64_t heads, std::int64_t key_heads, std::int64_t head_size, int ranks,
            int rank);

  const ChannelShare& queries() const noexcept { return queries_; }
  const ChannelShare& keys() const noexcept { return keys_; }
  /// The number of heads of this rank that are no padding; those come first.
  std::int64_t real_heads() const noexcept { return real_heads_; }
  /// For each of them, the index of its keys' head among those of this rank.
  const std::vector<std::int64_t>& key_of_head() const noexcept { return key_of_head_; }
  /// True if heads and their keys are the same ones in the same order.
  bool one_to_one() const noexcept { return one_to_one_; }

 private:
  ChannelShare queries_;
  ChannelShare keys_;
  std::int64_t real_heads_;
  std::vector<std::int64_t> key_of_head_;
  bool one_to_one_;
};

}  // namespace smp::tp
