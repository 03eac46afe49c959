// dp/loss_share.cpp: see the header.
#include "dp/loss_share.h"

#include <algorithm>
#include <numeric>

namespace smp::dp {

double loss_share(std::string_view loss, const std::vector<std::int64_t>& rows,
                  std::size_t replica) {
  if (loss == "sum") return 1;
  const bool whole = std::any_of(rows.begin(), rows.end(), [](auto count) { return count < 0; });
  if (loss != "mean" || whole) return 1.0 / static_cast<double>(rows.size());
  const auto all = std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
  return static_cast<double>(rows[replica]) / static_cast<double>(all);
}

double active_share(std::string_view loss, int active, int all, bool divide_by_all) {
  if (loss == "sum" || !divide_by_all) return 1;
  return static_cast<double>(active) / static_cast<double>(all);
}

}  // namespace smp::dp
