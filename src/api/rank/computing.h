// api/rank/computing.h: with how many threads and on which processors ranks compute, since the last
// bits of LibTorch's kernels depend on both (docs/what_is_equal.md).
#pragma once

#include <string>
#include <vector>

#include "smp/rank.h"

namespace smp {

/// With what a rank computes.
struct Computing {
  int threads = 1;        ///< within an operator
  std::string processor;  ///< with the instructions that kernels use: "AMD EPYC 9654 (AVX512)"
  bool operator==(const Computing&) const = default;
};

/// Of this process, as it is now.
Computing own_computing();

/// Ranks that compute alike.
struct AlikeRanks {
  std::vector<GlobalRank> ranks;  ///< ascending
  Computing computing;
};
/// Sorts `ranks` by what they compute with, in order of the first of each kind.
std::vector<AlikeRanks> alike_ranks(const std::vector<GlobalRank>& ranks,
                                    const std::vector<Computing>& all);

/// Returns a warning that names ranks and numbers of threads, if not all of them have as many; else
/// an empty text. @param threads  of ranks 0, 1, ..
std::string warning_of_threads(const std::vector<int>& threads);

}  // namespace smp
