// recipe/global_batch.cpp: see the header.
#include "smp/recipe/global_batch.h"

#include <algorithm>

#include "base/check.h"

namespace smp {

GlobalBatch divide_global_batch(std::int64_t total, std::int64_t rows, std::int64_t replicas) {
  SMP_REQUIRE(total > 0 && rows > 0 && replicas > 0, "a global batch of ", total,
              " rows, in microbatches of ", rows, ", on ", replicas,
              " replicas: each of these is at least 1");
  const auto at_once = rows * replicas;
  const auto accumulation = total / at_once;
  const auto below = std::max<std::int64_t>(accumulation, 1) * at_once;
  SMP_REQUIRE(total % at_once == 0, "a global batch of ", total, " rows cannot be dealt to ",
              replicas, " replicas in microbatches of ", rows, ": choose a multiple of ", at_once,
              ", such as ", below, " or ", below + at_once);
  return {.rows = rows, .accumulation = accumulation, .replicas = replicas};
}

}  // namespace smp
