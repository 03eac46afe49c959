// api/model/model_test.cpp: placement, what each rank holds, requests by formula, optimizers,
// norms, simple communication.
#include <gmock/gmock.h>

#include <cstdlib>
#include <set>
#include <string>
#include <vector>

#include "api/rank/plan_request.h"
#include "api/rank/rank.h"
#include "api/two_ranks.h"
#include "zoo/differential.h"

namespace smp::zoo {
namespace model_test {

std::int64_t resident_bytes(const std::vector<Tensor>& tensors) {
  std::int64_t bytes = 0;
  std::set<const void*> seen;
  for (const auto& tensor : tensors) {
    if (seen.insert(tensor.storage().unsafeGetStorageImpl()).second) {
      bytes += static_cast<std::int64_t>(tensor.storage().nbytes());
    }
  }
  return bytes;
}

Config automatic(int microbatches) {
  Config config;
  config.microbatches = microbatches;
  return config;
}

Case case_named(const std::string& name) {
  for (auto& c : all_cases()) {
    if (c.name == name) return c;
  }
  throw std::runtime_error("no zoo model " + name);
}

/// One step of the chain under a plan; `inspect` runs on every rank after it.
template <class Inspect>
void one_step(int ranks, int microbatches, const Inspect& inspect,
              const std::string& strategy = "best") {
  const auto c = case_named("mlp chain");
  auto config = automatic(microbatches);
  config.partition_strategy = strategy;
  run_local(
      ranks,
      [&] {
        DistributedModel model(build(c, torch::kDouble));
        auto train = step([&](std::vector<Tensor> inputs) {
          auto losses = model(inputs);
          model.backward(losses[0]);
          return losses[0];
        });
        train(batch_of(c, 0, torch::kDouble));
        inspect(model);
      },
      config);
}

TEST(Model, ARankHoldsItsOwnShareOnly) {
  std::int64_t held = 0, whole = 0;
  std::vector<std::int64_t> shares;
  one_step(3, 2, [&](auto& model) {
    std::vector<Tensor> foreign;
    for (const auto& parameter : model.parameters()) {
      if (!model.owns(parameter)) foreign.push_back(parameter);
    }
    for (const auto& parameter : foreign) EXPECT_FALSE(parameter.has_storage());
    shares.push_back(resident_bytes(model.local_parameters()));
    held += shares.back();
    whole = 0;
    for (const auto& row : model.plan().rows()) whole += row.bytes;
  });
  EXPECT_EQ(held, whole);
  for (const auto share : shares) EXPECT_LE(share, whole * 2 / 5);
}

/// A chain cut into p runs, as the tree algorithm does: pp_rank 0 asks each other rank once a
/// microbatch, forward and backward.
TEST(Model, SendsTheRequestsOfTheFormula) {
  for (const int ranks : {1, 2, 3}) {
    for (const int microbatches : {1, 4}) {
      SCOPED_TRACE(testing::Message() << ranks << " ranks, " << microbatches << " microbatches");
      one_step(
          ranks, microbatches,
          [&](auto& model) {
            SCOPED_TRACE(model.plan().table());
            const auto& counters = Rank::current().server().core().counters;
            const auto others = static_cast<std::uint64_t>((ranks - 1) * microbatches);
            EXPECT_EQ(counters.forward_requests, rank() == 0 ? others : 0);
            EXPECT_EQ(counters.backward_requests, rank() == 0 ? others : 0);
            const auto own = static_cast<std::uint64_t>(rank() == 0 ? 0 : microbatches);
            EXPECT_EQ(counters.executed_forward, own);
            EXPECT_EQ(counters.executed_backward, own);
            EXPECT_EQ(counters.records_left, 0u);
          },
          "tree");
    }
  }
}

TEST(Model, NamesEveryParameterOnce) {
  run_local(2, [&] {
    DistributedModel model(build(case_named("tiny T5, tied"), torch::kDouble));
    std::set<const void*> seen;
    for (const auto& [name, parameter] : model.named_parameters()) {
      EXPECT_TRUE(seen.insert(parameter.unsafeGetTensorImpl()).second) << name;
    }
    EXPECT_EQ(model.local_parameters().size(), model.parameters().size());
    EXPECT_FALSE(model.partitioned());
    model.place();
    EXPECT_TRUE(model.partitioned());
    EXPECT_LT(model.local_parameters().size(), model.parameters().size());
  });
}

TEST(Optimizer, KeepsGroupsAndOwnsTheirLocalParameters) {
  run_local(3, [&] {
    DistributedModel model(build(case_named("mlp chain"), torch::kDouble));
    auto parameters = model.parameters();
    std::vector<torch::optim::OptimizerParamGroup> groups;
    groups.emplace_back(std::vector<Tensor>{parameters[0], parameters[1]});
    groups.emplace_back(std::vector<Tensor>(parameters.begin() + 2, parameters.end()));
    DistributedOptimizer optimizer(model,
                                   torch::optim::Adam(groups, torch::optim::AdamOptions(1e-3)));
    model.place();
    ASSERT_EQ(optimizer.param_groups().size(), 2u);
    EXPECT_EQ(optimizer.param_groups()[0].params().size(), rank() == 0 ? 2u : 0u);
    std::size_t owned = 0;
    for (auto& group : optimizer.param_groups()) owned += group.params().size();
    EXPECT_EQ(owned, model.local_parameters().size());
    optimizer.zero_grad();
    optimizer.step();  // no gradients anywhere, an empty group: nothing to do
  });
}

TEST(Optimizer, RefusesLbfgs) {
  run_local(1, [&] {
    DistributedModel model(build(case_named("mlp chain"), torch::kDouble));
    EXPECT_THROW(
        detail::OptimizerShare(std::make_shared<torch::optim::LBFGS>(model.parameters()), {model}),
        UnsupportedError);
  });
}

TEST(Model, ClipsTheNormOfAllRanks) {
  const auto c = case_named("residual");
  auto reference = build(c, torch::kDouble);
  const auto batch = batch_of(c, 0, torch::kDouble);
  reference->forward(batch)[0].backward();
  const auto norm = torch::nn::utils::clip_grad_norm_(reference->parameters(), 0.01);
  run_local(
      3,
      [&] {
        DistributedModel model(build(c, torch::kDouble));
        auto train = step([&](std::vector<Tensor> inputs) { model.backward(model(inputs)[0]); });
        train(batch);
        EXPECT_NEAR(model.clip_grad_norm_(0.01), norm, 1e-12);
        const auto expected = reference->named_parameters();
        for (const auto& [name, parameter] : model.local_named_parameters()) {
          expect_close(parameter.grad(), expected[name].grad(), 1e-10, name);
        }
      },
      automatic(1));
}

TEST(Session, BroadcastsAndMeets) {
  run_local(4, [&] {
    const auto value = broadcast(rank() == 2 ? std::string("from two") : std::string(), 2);
    EXPECT_EQ(value, "from two");
    const auto tensor = broadcast(torch::full({2000}, rank()), 1);
    EXPECT_TRUE(torch::equal(tensor, torch::full({2000}, 1)));
    barrier();
    barrier(Group::kTp);
    EXPECT_EQ(size(), 4);
    EXPECT_EQ(pp_size(), 4);
    EXPECT_EQ(group(Group::kPp), (std::vector<int>{0, 1, 2, 3}));
  });
}

TEST(Session, GathersWhatEachRankHas) {
  Config config;
  config.pipeline_parallel_degree = 2;
  run_local(
      4,
      [&] {
        EXPECT_EQ(all_gather(rank() * 1.5), (std::vector<double>{0, 1.5, 3, 4.5}));
        EXPECT_EQ(all_gather(std::to_string(rank()), Group::kDp),
                  (std::vector<std::string>{std::to_string(group(Group::kDp).at(0)),
                                            std::to_string(group(Group::kDp).at(1))}));
        const auto tensors =
            all_gather(torch::full({2000}, rank(), torch::kDouble).requires_grad_(), Group::kPp);
        ASSERT_EQ(tensors.size(), 2U);
        for (std::size_t stage = 0; stage < 2; ++stage) {
          EXPECT_TRUE(torch::equal(tensors[stage].to(torch::kLong),
                                   torch::full({2000}, group(Group::kPp).at(stage), torch::kLong)));
          EXPECT_FALSE(tensors[stage].requires_grad());
        }
        const auto own = torch::zeros({3});
        all_gather(own)[static_cast<std::size_t>(rank())].fill_(1);
        broadcast(own, 0).fill_(1);
        EXPECT_EQ(own.sum().item<float>(), 0) << "what comes is new";
      },
      config);
  run_local(2, [] {
    auto inside = step([] { all_gather(1); });
    EXPECT_THAT(refused_step<UsageError>(0, inside),
                testing::HasSubstr("smp::all_gather was called inside a step"));
  });
}

/// Programs take one value a rank out of it, also while `smp plan` runs them.
TEST(Session, OfAJobThatIsOnlyPlannedGathersAsManyValues) {
  setenv(kPlanRanksVariable, "4", /*overwrite=*/1);
  {
    int argc = 0;
    char* argv[] = {nullptr};
    const auto session = init(argc, argv, {.pipeline_parallel_degree = 2});
    EXPECT_EQ(all_gather(7), std::vector<int>(4, 7));
    EXPECT_EQ(all_gather(7, Group::kDp), std::vector<int>(2, 7));
  }
  unsetenv(kPlanRanksVariable);
}

TEST(Session, ReportsADeadlockWithTheTableOfWhoWaits) {
  try {
    run_local(2, [&] {
      if (rank() == 0) broadcast(1, 1);
      if (rank() == 1) broadcast(1, 0);
    });
    FAIL() << "two ranks waited for each other";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("rank 0 waits for a broadcast on rank 1"));
  }
}

TEST(Session, ASecondOneIsRefused) {
  run_local(1, [&] {
    int argc = 0;
    char* argv[] = {nullptr};
    EXPECT_THROW(static_cast<void>(init(argc, argv)), UsageError);
  });
}

TEST(Session, NothingWorksWithoutOne) {
  EXPECT_FALSE(is_initialized());
  EXPECT_THROW(rank(), UsageError);
  EXPECT_THROW(barrier(), UsageError);
}

}  // namespace model_test
}  // namespace smp::zoo
