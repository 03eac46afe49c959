// api/replicas/early_gradients_local.h: the programs of early_gradients_testing.h on ranks of one
// process, early and late.
#pragma once

#include <gmock/gmock.h>

#include <cstdint>

#include "api/replicas/early_gradients_testing.h"

namespace smp::zoo {
namespace early_gradients_testing {

inline Outcome train(const Program& program, bool overlap, std::uint64_t seed,
                     double bucket_mb = 2e-3) {
  Outcome outcome;
  run_local(program.stages * program.replicas, [&] { train_rank(program, outcome); },
            config_of(program, overlap, bucket_mb), {.seed = seed});
  return outcome;
}

/// The same bits with and without, in other orders of events and other buckets.
/// @return buckets averaged early, in the last of the runs
inline std::uint64_t expect_bits_of_late(const Program& program) {
  const auto expected = train(program, false, 1);
  EXPECT_EQ(expected.early, 0u);
  std::uint64_t early = 0;
  for (const std::uint64_t seed : {1, 2, 3, 4}) {
    SCOPED_TRACE(seed);
    for (const double bucket_mb : {1e-6, 2e-3}) {
      const auto own = train(program, true, seed, bucket_mb);
      expect_same(own.gradients, expected.gradients);
      expect_same(own.values, expected.values);
      early = own.early;
    }
  }
  return early;
}

/// Bodies scale gradients, past the version counter and by other factors in each replica: in step
/// `when`, or -1: in all.
inline void scale_in_bodies(Program& program, int when) {
  program.backward = [when](Replica& replica, int step, const at::Tensor& loss) {
    replica.model.backward(loss);
    if (step != when && when >= 0) return;
    for (const auto& parameter : replica.model.local_parameters()) {
      if (parameter.grad().defined()) parameter.grad().data().mul_(0.25 + dp_rank());
    }
  };
}

inline Program of_stages(int stages) {
  Program program;
  program.stages = stages;
  return program;
}

}  // namespace early_gradients_testing
}  // namespace smp::zoo
