// partition/model/replica_sums.cpp: see the header.
#include "partition/model/replica_sums.h"

#include <algorithm>

#include "base/check.h"

namespace smp::partitioning {

double replica_sum_seconds(const simulate::SimulatedStep& step,
                           const simulate::Machine::Replicas& replicas,
                           const std::vector<std::int64_t>& gradient_bytes) {
  SMP_ASSERT(gradient_bytes.size() == step.ends.size());
  const bool early = replicas.bucket_bytes > 0;
  double end = step.seconds;
  for (std::size_t stage = 0; stage < gradient_bytes.size(); ++stage) {
    const auto bytes = gradient_bytes[stage];
    const auto last = early ? std::min(bytes, replicas.bucket_bytes) : bytes;
    const double begin = early ? step.last_backwards[stage] : step.ends[stage];
    end = std::max(
        {end, begin + replicas.seconds_for(bytes), step.ends[stage] + replicas.seconds_for(last)});
  }
  return end - step.seconds;
}

}  // namespace smp::partitioning
