// Placement as a program of the original writes it: scopes around the modules it makes, hooks, and
// what a rank has afterwards.
#include <gmock/gmock.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "api/two_ranks.h"
#include "smp/program/hooks.h"
#include "smp/program/local_parts.h"

namespace smp {
namespace placement_test {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::UnorderedElementsAre;

struct BlockImpl : torch::nn::Module {
  BlockImpl()
      : linear(register_module("linear", nn::Linear(4, 4))),
        count(register_buffer("count", torch::full({1}, 3.0))) {
    to(torch::kDouble);
  }
  at::Tensor forward(const at::Tensor& x) { return linear(x).tanh() * count; }
  nn::Linear linear;
  at::Tensor count;
};
SMP_MODULE(Block);

/// One block for each stage that is named; -1: under no scope.
struct TowerImpl : torch::nn::Module {
  explicit TowerImpl(const std::vector<int>& stages) {
    for (std::size_t i = 0; i < stages.size(); ++i) {
      std::optional<partition> here;
      if (stages[i] >= 0) here.emplace(stages[i]);
      blocks.push_back(register_module("block" + std::to_string(i), Block()));
    }
  }
  at::Tensor forward(at::Tensor x) {
    for (auto& block : blocks) x = block(x);
    return x;
  }
  std::vector<Block> blocks;
};
SMP_MODULE(Tower);

Tower make_tower(const std::vector<int>& stages) {
  torch::manual_seed(3);
  return Tower(stages);
}

Config by_hand(int stages = 0) {
  Config config;
  config.microbatches = 2;
  config.plan_cache = "off";
  config.auto_partition = false;
  config.default_partition = 0;
  if (stages > 0) config.pipeline_parallel_degree = stages;
  return config;
}

at::Tensor batch(int number) {
  torch::manual_seed(100 + number);
  return torch::randn({4, 4}, torch::kDouble);
}

constexpr int kSteps = 8;  // static_mode replays after five

/// What plain LibTorch makes of the parameters, with the same microbatches.
std::map<std::string, at::Tensor> trained_alone(const std::vector<int>& stages) {
  auto net = make_tower(stages);
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  for (int number = 0; number < kSteps; ++number) {
    optimizer.zero_grad();
    for (const auto& rows : batch(number).chunk(2)) (net(rows).pow(2).mean() / 2).backward();
    optimizer.step();
  }
  std::map<std::string, at::Tensor> parameters;
  for (const auto& item : net->named_parameters()) parameters[item.key()] = item.value();
  return parameters;
}

template <class Net>
void train_and_compare(Net net, const std::map<std::string, at::Tensor>& expected) {
  DistributedModel model(net);
  DistributedOptimizer optimizer(model, torch::optim::SGD(model.parameters(), 0.1));
  auto train = step([&](const at::Tensor& x) { model.backward(model(x).pow(2).mean()); });
  for (int number = 0; number < kSteps; ++number) {
    optimizer.zero_grad();
    train(batch(number));
    optimizer.step();
  }
  for (const auto& [name, parameter] : model.local_named_parameters()) {
    EXPECT_TRUE(torch::allclose(parameter, expected.at(name), 1e-12, 1e-14)) << name;
  }
}

/// Stages that come back are as good as runs of modules.
TEST(PartitionScope, PlacesModulesInAnyOrderOfStages) {
  for (const auto& stages :
       std::vector<std::vector<int>>{{0, 1, 2, 1, 0, 2}, {2, 2, 0, 0, 1, 1}, {1, 0, 1, 0, 1, 2}}) {
    const auto expected = trained_alone(stages);
    for (const int replicas : {1, 2}) {
      run_local(
          3 * replicas,
          [&] {
            auto net = make_tower(stages);
            train_and_compare(net, expected);
            for (std::size_t i = 0; i < stages.size(); ++i) {
              EXPECT_EQ(net->blocks[i]->smp_place.owner.value(), stages[i]);
            }
          },
          by_hand(3));
    }
  }
}

TEST(PartitionScope, CountsUnderEveryScheduleAndMode) {
  const std::vector<int> stages{0, 1, 0, 1};
  const auto expected = trained_alone(stages);
  for (const char* pipeline : {"interleaved", "simple", "1f1b", "zero_bubble"}) {
    for (const bool is_static : {false, true}) {
      auto config = by_hand();
      config.pipeline = pipeline;
      config.static_mode = is_static;
      run_local(
          2, [&] { train_and_compare(make_tower(stages), expected); }, config);
    }
  }
}

/// As the original says: what stands under no scope goes to default_partition, or is split.
TEST(PartitionScope, LeavesTheRestToTheSettings) {
  for (const bool automatic : {false, true}) {
    auto config = by_hand();
    config.auto_partition = automatic;
    config.default_partition = automatic ? std::nullopt : std::optional<int>(1);
    run_local(
        2,
        [&] {
          DistributedModel model(make_tower({-1, 0, -1, 0}));
          model.place();
          EXPECT_EQ(model.plan().stage_of("block1"), 0);
          EXPECT_EQ(model.plan().stage_of("block3"), 0);
          if (!automatic) {
            EXPECT_EQ(model.plan().stage_of("block0"), 1);
          }
          EXPECT_TRUE(model.plan().stage_of("block0") == 1 || model.plan().stage_of("block2") == 1);
        },
        config);
  }
}

TEST(PartitionScope, TheInnermostWinsAndEndsWithItsBlock) {
  run_local(
      3,
      [] {
        std::vector<Block> made;
        {
          const partition outer(1);
          made.emplace_back(Block());
          {
            const partition inner(2);
            made.emplace_back(Block());
          }
          made.emplace_back(Block());
        }
        made.emplace_back(Block());
        std::vector<int> pins;
        for (const auto& block : made) pins.push_back(block->smp_pin.value_or(-1));
        EXPECT_THAT(pins, ElementsAre(1, 2, 1, -1));
      },
      by_hand());
}

TEST(PartitionScope, IsThatOfTheRankWhoseCodeRuns) {
  run_local(2, [] {
    const partition here(rank());
    barrier();  // the other rank is inside its own scope
    EXPECT_EQ(Block()->smp_pin, rank());
  });
}

TEST(PartitionScope, GivesWayToSetPartition) {
  run_local(
      2,
      [] {
        DistributedModel model(make_tower({0, 1}));
        model.set_partition("block1", 0);
        model.set_partition("block0", 1);
        model.place();
        EXPECT_EQ(model.plan().stage_of("block0"), 1);
        EXPECT_EQ(model.plan().stage_of("block1"), 0);
      },
      by_hand());
}

TEST(PartitionScope, OfAStageThatDoesNotExistNamesTheModule) {
  run_local(
      2,
      [] {
        DistributedModel model(make_tower({0, 7}));
        EXPECT_THAT(refusal<UsageError>([&] { model.place(); }),
                    AllOf(HasSubstr("block1"), HasSubstr("7"), HasSubstr("smp::partition")));
      },
      by_hand());
}

TEST(PartitionScope, WorksWithDelayedInitialisation) {
  const std::vector<int> stages{1, 0, 1, 0};
  const auto expected = trained_alone(stages);
  run_local(
      2,
      [&] {
        const auto net = [&] {
          const delay_param_initialization delay;
          return make_tower(stages);
        }();
        train_and_compare(net, expected);
        EXPECT_EQ(net->blocks[0]->smp_place.owner.value(), 1);
      },
      by_hand());
}

TEST(PartitionScope, OfSeveralModelsIsEachOnesOwn) {
  run_local(
      2,
      [] {
        auto first = make_tower({0, 1}), second = make_tower({1, 0});
        DistributedModel a(first), b(second);
        auto train = step([&](const at::Tensor& x) { a.backward(b(a(x)).pow(2).mean()); });
        train(batch(0));
        EXPECT_EQ(a.plan().stage_of("block1"), 1);
        EXPECT_EQ(b.plan().stage_of("block1"), 0);
        for (const auto& name : {"block0", "block1"}) {
          EXPECT_EQ(a.plan().stage_of(name), 1 - b.plan().stage_of(name));
        }
      },
      by_hand());
}

TEST(PostPartitionHook, RunsOnceWhenTheModelIsPlacedAndLaterAtOnce) {
  run_local(
      2,
      [] {
        DistributedModel model(make_tower({0, 1}));
        int placed = 0;
        model.on_placed([&] {
          EXPECT_TRUE(model.partitioned());
          EXPECT_EQ(model.local_named_parameters().size(), 2U);
          ++placed;
        });
        auto train = step([&](const at::Tensor& x) {
          EXPECT_TRUE(is_tracing() || placed == 1) << "before the first forward";
          model.backward(model(x).sum());
        });
        EXPECT_EQ(placed, 0);
        train(batch(0));
        train(batch(1));
        EXPECT_EQ(placed, 1);
        model.on_placed([&] { ++placed; });
        EXPECT_EQ(placed, 2);
      },
      by_hand());
}

TEST(PostStepHook, RunsAfterEveryStepThatEndsWell) {
  run_local(
      2,
      [] {
        DistributedModel model(make_tower({0, 1}));
        bool fails = false;
        auto train = step([&](const at::Tensor& x) {
          if (fails) throw std::runtime_error("meant to fail");
          model.backward(model(x).sum());
        });
        std::string called;
        auto first = register_post_step_hook([&] {
          for (const auto& parameter : model.local_parameters()) {
            EXPECT_TRUE(parameter.grad().defined());
          }
          EXPECT_EQ(all_gather(rank()).size(), 2U) << "collectives may be called";
          called += 'a';
        });
        auto second = register_post_step_hook([&] { called += 'b'; });
        train(batch(0));
        EXPECT_EQ(called, "ab");
        fails = true;
        EXPECT_ANY_THROW(train(batch(0)));
        EXPECT_EQ(called, "ab");
        fails = false;
        first.remove();
        train(batch(0));
        EXPECT_EQ(called, "abb");
        second = register_post_step_hook([] { throw std::runtime_error("of the hook"); });
        EXPECT_THAT(refusal<std::runtime_error>([&] { train(batch(0)); }),
                    HasSubstr("of the hook"));
        EXPECT_EQ(called, "abb") << "a hook ends with its object";
        second = register_post_step_hook([&] {
          called += 'e';
          const at::NoGradGuard no_grad;
          step([&](const at::Tensor& x) { return model(x).sum(); })(batch(0));
        });
        train(batch(0));
        train(batch(0));
        EXPECT_EQ(called, "abbee") << "steps of a hook run none";
      },
      by_hand());
}

std::vector<std::string> names_of(
    const std::vector<std::pair<std::string, torch::nn::Module*>>& modules) {
  std::vector<std::string> names;
  for (const auto& [name, module] : modules) names.push_back(name);
  return names;
}

TEST(LocalParts, AreThoseOfThisRank) {
  run_local(
      2,
      [] {
        auto net = make_tower({0, 1, 0});
        DistributedModel model(net);
        EXPECT_EQ(local_named_modules(model).size(), 7U) << "before placement all";
        EXPECT_EQ(local_buffers(model).size(), 3U);
        model.place();
        if (rank() == 0) {
          EXPECT_THAT(names_of(local_named_modules(model)),
                      ElementsAre("", "block0", "block0.linear", "block2", "block2.linear"));
          EXPECT_EQ(local_buffers(model).size(), 2U);
        } else {
          EXPECT_THAT(names_of(local_named_modules(model)), ElementsAre("block1", "block1.linear"));
          EXPECT_THAT(local_modules(model),
                      ElementsAre(net->blocks[1].get(), net->blocks[1]->linear.get()));
          EXPECT_EQ(local_buffers(model).size(), 1U);
          EXPECT_TRUE(local_buffers(model)[0].is_same(net->blocks[1]->count));
        }
      },
      by_hand());
}

TEST(LocalParts, OnTheCpuAreTheWholeModelEverywhere) {
  const auto plain = make_tower({-1, -1, -1});
  for (const int tp : {1, 2}) {
    auto config = by_hand(2);
    config.tensor_parallel_degree = tp;
    run_local(
        2 * tp,
        [&] {
          DistributedModel model(make_tower({0, 1, 0}));
          model.place();
          const auto whole = cpu(model);
          for (const auto& item : plain->named_parameters()) {
            EXPECT_TRUE(torch::equal(whole.at(item.key()), item.value())) << item.key();
          }
          EXPECT_EQ(whole.size(), plain->parameters().size() + plain->buffers().size());
          auto written = whole.at("block0.linear.weight");
          written.zero_();
          if (rank() == 0) {
            EXPECT_GT(model.local_parameters()[0].abs().sum().item<double>(), 0) << "copies";
          }
        },
        config);
  }
}

TEST(PostPartitionHook, ThatWasRemovedDoesNotRun) {
  run_local(
      2,
      [] {
        DistributedModel model(make_tower({0, 1}));
        std::string called;
        auto kept = register_post_partition_hook(model, [&] { called += 'a'; });
        auto removed = register_post_partition_hook(model, [&] { called += 'b'; });
        {
          const auto gone = register_post_partition_hook(model, [&] { called += 'c'; });
        }
        removed.remove();
        EXPECT_EQ(called, "");
        auto train = step([&](const at::Tensor& x) {
          EXPECT_TRUE(is_tracing() || called == "a") << "before the first forward";
          model.backward(model(x).sum());
        });
        train(batch(0));
        train(batch(1));
        EXPECT_EQ(called, "a");
        const auto late = register_post_partition_hook(model, [&] { called += 'd'; });
        EXPECT_EQ(called, "ad") << "at once where the model is placed";
        EXPECT_THAT(refusal<UsageError>(
                        [&] { static_cast<void>(register_post_partition_hook(model, nullptr)); }),
                    HasSubstr("empty function"));
      },
      by_hand());
}

}  // namespace placement_test
}  // namespace smp
