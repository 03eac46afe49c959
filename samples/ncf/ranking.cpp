// samples/ncf/ranking.cpp: see the header.
#include "ranking.h"

namespace ncf {

Ranking rank_first(const torch::Tensor& scores, const torch::Tensor& counts) {
  const auto all = scores.to(torch::kDouble);
  const auto better = (all.narrow(1, 1, all.size(1) - 1) >= all.narrow(1, 0, 1)).sum(1);
  const auto hit = (better < Ranking::kBest).to(torch::kDouble) * counts.to(torch::kDouble);
  const auto gain = hit / torch::log2(better.to(torch::kDouble) + 2);
  return {counts.sum().item<double>(), hit.sum().item<double>(), gain.sum().item<double>()};
}

}  // namespace ncf
