// tp/slices/channel_share.cpp: see the header.
#include "tp/slices/channel_share.h"

#include <algorithm>

namespace smp::tp {
namespace {

/// Returns ranges of the same length that hold the keys of each rank's heads; some overlap.
ChannelShare shared_keys(std::int64_t heads, std::int64_t key_heads, std::int64_t head_size,
                         std::int64_t heads_of_rank, int ranks) {
  const auto sharing = heads / key_heads;
  const auto key_of = [&](std::int64_t head) { return std::min(head, heads - 1) / sharing; };
  std::int64_t longest = 1;
  for (int rank = 0; rank < ranks; ++rank) {
    const auto first = rank * heads_of_rank;
    longest = std::max(longest, key_of(first + heads_of_rank - 1) - key_of(first) + 1);
  }
  ChannelShare share{longest * head_size, head_size, {}};
  for (int rank = 0; rank < ranks; ++rank) {
    share.first.push_back(std::min(key_of(rank * heads_of_rank), key_heads - longest) * head_size);
  }
  return share;
}

}  // namespace

ChannelShare ChannelShare::even(std::int64_t units, std::int64_t unit, int ranks) {
  ChannelShare share{(units + ranks - 1) / ranks * unit, unit, {}};
  for (int rank = 0; rank < ranks; ++rank) share.first.push_back(rank * share.count);
  return share;
}

bool ChannelShare::cut() const noexcept {
  for (std::size_t rank = 0; rank < first.size(); ++rank) {
    if (first[rank] != static_cast<std::int64_t>(rank) * count) return false;
  }
  return true;
}

std::vector<std::int64_t> ChannelShare::places() const {
  std::vector<std::int64_t> all;
  for (const auto begin : first) {
    for (std::int64_t i = 0; i < count; ++i) all.push_back(begin + i);
  }
  return all;
}

HeadShare::HeadShare(std::int64_t heads, std::int64_t key_heads, std::int64_t head_size, int ranks,
                     int rank)
    : queries_(ChannelShare::even(heads, head_size, ranks)) {
  const auto own = queries_.count / head_size;
  const bool own_keys = heads == key_heads || key_heads % ranks == 0;
  keys_ = own_keys ? ChannelShare::even(key_heads, head_size, ranks)
                   : shared_keys(heads, key_heads, head_size, own, ranks);
  const auto first = rank * own;
  real_heads_ = std::clamp<std::int64_t>(heads - first, 0, own);
  const auto first_key = keys_.first[static_cast<std::size_t>(rank)] / head_size;
  for (std::int64_t i = 0; i < real_heads_; ++i) {
    key_of_head_.push_back((first + i) / (heads / key_heads) - first_key);
  }
  one_to_one_ = heads == key_heads && real_heads_ == own;
}

}  // namespace smp::tp
