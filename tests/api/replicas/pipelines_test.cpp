// Nothing takes rank 0 of the job for stage 0, or the job for one pipeline: every zoo model on the
// last ranks of a larger world, and in two pipelines side by side, equals one process.
#include <gmock/gmock.h>

#include <algorithm>

#include "api/session/start.h"
#include "zoo/differential.h"

namespace smp::zoo {
namespace pipelines_test {

Trace reference_of(const Case& c) {
  if (!c.random) return train_in_one_process(c);
  Trace trace;
  run_local(1, [&] { trace = train_distributed(c, {}); }, zoo_config("simple"), {1});
  return trace;
}

/// Trains in the pipelines named by `trains`, of `stages` ranks each; the others leave at once.
/// @return the parts of each pipeline's ranks together
std::vector<Trace> train_pipelines(const Case& c, int pipelines, int stages,
                                   const std::vector<int>& trains, const std::string& placement) {
  auto config = zoo_config("interleaved");
  config.pipeline_parallel_degree = stages;
  config.placement_strategy = placement;
  const auto modules = random_placement(c, stages, 7);
  std::vector<Trace> whole(static_cast<std::size_t>(pipelines));
  start_local(pipelines * stages,
              [&] {
                const auto own = static_cast<std::size_t>(rdp_rank());
                if (std::find(trains.begin(), trains.end(), rdp_rank()) == trains.end()) return;
                auto part = train_distributed(c, modules);
                whole[own].losses = part.losses;
                whole[own].gradients.merge(part.gradients);
                whole[own].finals.merge(part.finals);
              },
              config, {3}, {.independent_pipelines = true});
  return whole;
}

class Pipelines : public testing::TestWithParam<std::size_t> {};

TEST_P(Pipelines, OnTheLastRanksOfALargerWorld) {
  const auto c = all_cases()[GetParam()];
  SCOPED_TRACE(c.name);
  const auto reference = reference_of(c);
  for (const int stages : {2, 4}) {
    SCOPED_TRACE(testing::Message() << "the last " << stages << " ranks");
    const auto all = train_pipelines(c, 3, stages, {2}, "DPT");
    ASSERT_EQ(all[2].finals.size(), reference.finals.size());
    expect_equal(all[2], reference, 1e-12);
  }
}

TEST_P(Pipelines, TwoSideBySide) {
  const auto c = all_cases()[GetParam()];
  SCOPED_TRACE(c.name);
  const auto reference = reference_of(c);
  for (const auto* placement : {"DPT", "PDT"}) {  // neighbours, and every other rank
    SCOPED_TRACE(placement);
    for (const auto& pipeline : train_pipelines(c, 2, 2, {0, 1}, placement)) {
      ASSERT_EQ(pipeline.finals.size(), reference.finals.size());
      expect_equal(pipeline, reference, 1e-12);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Pipelines, testing::Range<std::size_t>(0, all_cases().size()));

TEST(Pipelines, ErrorsNameTheRankOfTheJob) {
  Config config;
  config.pipeline_parallel_degree = 2;
  try {
    start_local(4,
                [] {
                  if (rdp_rank() == 0) return;
                  nn::Sequential net(nn::Linear(2, 2), nn::Linear(3, 3));
                  DistributedModel model(net);
                  model.set_partition("", 0);
                  model.set_partition("1", 1);
                  auto train = step([&](Tensor x) { return model(x).sum(); });
                  train(torch::ones({2, 2}));
                },
                config, {}, {.independent_pipelines = true});
    ADD_FAILURE() << "no error";
  } catch (const std::exception& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("rank 3, module 1 (forward), microbatch 0"));
  }
}

}  // namespace pipelines_test
}  // namespace smp::zoo
