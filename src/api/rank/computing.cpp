// api/rank/computing.cpp: see the header.
#include "api/rank/computing.h"

#include <ATen/Parallel.h>
#include <ATen/Version.h>

#include <algorithm>

#include "api/rank/shared_warnings.h"
#include "base/check.h"
#include "base/machine/processor.h"

namespace smp {

Computing own_computing() {
  return {at::get_num_threads(),
          base::concat(base::processor_name(), " (", at::get_cpu_capability(), ")")};
}

std::vector<AlikeRanks> alike_ranks(const std::vector<GlobalRank>& ranks,
                                    const std::vector<Computing>& all) {
  std::vector<AlikeRanks> kinds;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    auto kind = std::find_if(kinds.begin(), kinds.end(),
                             [&](const AlikeRanks& each) { return each.computing == all[i]; });
    if (kind == kinds.end()) kind = kinds.insert(kind, {{}, all[i]});
    kind->ranks.push_back(ranks[i]);
  }
  return kinds;
}

std::string warning_of_threads(const std::vector<int>& threads) {
  std::vector<GlobalRank> ranks;
  std::vector<Computing> all;
  for (const int count : threads) {
    ranks.emplace_back(static_cast<int>(ranks.size()));
    all.push_back({count, {}});
  }
  const auto kinds = alike_ranks(ranks, all);
  if (kinds.size() < 2) return {};
  std::string text;
  for (const auto& kind : kinds) {
    if (!text.empty()) text += ", ";
    text += base::concat(kind.computing.threads, " on ", names_of(kind.ranks));
  }
  return base::concat(
      "ranks compute with different numbers of threads: ", text,
      "; results may differ in their last bits from a run in which these numbers are "
      "others. Set intra_op_threads, or OMP_NUM_THREADS to the same on all ranks");
}

}  // namespace smp
