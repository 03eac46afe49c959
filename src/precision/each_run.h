// precision/each_run.h: the elements of a part, by all threads, in runs of neighbours of the whole.
#pragma once

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdint>

#include "precision/whole_index.h"

namespace smp::precision {

/// Calls `action(begin, count, whole)` for runs that together are elements 0 to `all - 1` of the
/// part; element `begin` of the part is element `whole` of the whole. Threads: LibTorch's, each
/// with some of the elements.
template <class Action>
void each_run(const WholeIndex& part, std::int64_t all, Action&& action) {
  constexpr std::int64_t kGrain = 1 << 15;
  at::parallel_for(0, all, kGrain, [&](std::int64_t begin, std::int64_t end) {
    while (begin < end) {
      const std::int64_t row = begin / part.inner, within = begin % part.inner;
      const std::int64_t count = std::min(end - begin, part.inner - within);
      action(begin, count, row * part.whole_inner + part.first + within);
      begin += count;
    }
  });
}

}  // namespace smp::precision
