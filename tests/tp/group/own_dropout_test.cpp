// Ranks with one batch drop other elements of what they have parts of, and the same ones of what
// they have alike.
#include "tp/group/own_dropout.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "base/random.h"
#include "tp/tp_group.h"

namespace smp::tp {
namespace own_dropout_test {

struct Drawn {
  at::Tensor part, after;  // after it, by all alike
};

/// @param width  of the part of each rank
std::vector<Drawn> drawn(Batches batches, const std::vector<std::int64_t>& widths, double p,
                         bool training) {
  std::vector<Drawn> all(widths.size());
  d2d::SimulatedJob job(static_cast<int>(widths.size()));
  on_group(
      job, static_cast<int>(widths.size()),
      [&](int rank) {
        const auto place = static_cast<std::size_t>(rank);
        const base::RandomScope same(7);
        all[place].part = own_dropout(at::ones({widths[place], 50}), p, training);
        all[place].after = at::dropout(at::ones({50}), 0.5, true);
      },
      batches);
  return all;
}

TEST(OwnDropout, DrawsOthersOnEachRankOfAPrescaledBatch) {
  const auto all = drawn(Batches::kPrescaled, {4, 4, 3}, 0.25, true);
  EXPECT_FALSE(at::equal(all[0].part, all[1].part));
  EXPECT_TRUE(at::equal(all[0].after, all[1].after));
  EXPECT_TRUE(at::equal(all[0].after, all[2].after)) << "whose part has another size";
  const auto kept = at::cat({all[0].part, all[1].part}).to(at::kBool);
  EXPECT_NEAR(kept.to(at::kDouble).mean().item<double>(), 0.75, 0.1);
  EXPECT_TRUE(
      at::allclose(all[0].part.masked_select(all[0].part > 0).mean(), at::scalar_tensor(1 / 0.75)));
}

TEST(OwnDropout, IsTheUsualOneOfOwnSamples) {
  const auto all = drawn(Batches::kOwn, {4, 4}, 0.25, true);
  const base::RandomScope same(7);
  EXPECT_TRUE(at::equal(all[0].part, at::dropout(at::ones({4, 50}), 0.25, true)));
}

TEST(OwnDropout, DrawsNothingWhereNothingIsDropped) {
  for (const auto& all : {drawn(Batches::kPrescaled, {4, 4}, 0, true),
                          drawn(Batches::kPrescaled, {4, 4}, 0.25, false)}) {
    const base::RandomScope same(7);
    EXPECT_TRUE(at::equal(all[0].part, at::ones({4, 50})));
    EXPECT_TRUE(at::equal(all[0].after, at::dropout(at::ones({50}), 0.5, true)));
  }
}

}  // namespace own_dropout_test
}  // namespace smp::tp
