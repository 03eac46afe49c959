// samples/ncf/ranking.h: how high held-out items are ranked (He et al., WWW 2017, section 4.1).
#pragma once

#include <torch/torch.h>

namespace ncf {

/// Sums over users; those of several ranks are added.
struct Ranking {
  static constexpr int kBest = 10;

  double users = 0;
  double hits = 0;  ///< whose held-out item is among the ten best
  double gain = 0;  ///< 1 / log2(2 + place) of each of these, place 0 being the best

  double hit_ratio() const { return hits / users; }
  double ndcg() const { return gain / users; }
};

/// @param scores  [users, candidates], of the held-out item first; whoever is as good counts as
///                better
/// @param counts  [users]: 0 leaves one out
Ranking rank_first(const torch::Tensor& scores, const torch::Tensor& counts);

}  // namespace ncf
