// Zoo models built under smp::delay_param_initialization: same bits and same training on any number
// of ranks as if they had been built whole on each.
#include <gmock/gmock.h>

#include "api/rank/rank.h"
#include "deferred/delayed_tensors.h"
#include "zoo/differential.h"

namespace smp::zoo {
namespace delayed_init_test {

using Named = std::map<std::string, Tensor>;

Named tensors_of(const DistributedModelBase::NamedTensors& parameters,
                 const DistributedModelBase::NamedTensors& buffers) {
  Named all(parameters.begin(), parameters.end());
  all.insert(buffers.begin(), buffers.end());
  return all;
}

Case with_random_placement(const char* name) {
  for (auto& c : all_cases()) {
    if (c.name == name) return c;
  }
  throw std::runtime_error(std::string("no zoo model ") + name);
}

TEST(DelayedInit, GivesEveryRankTheBitsOfAWholeModel) {
  for (const auto& c : all_cases()) {
    SCOPED_TRACE(c.name);
    const auto whole = build(c, torch::kDouble);
    const auto expected =
        tensors_of(named(whole->named_parameters()), named(whole->named_buffers()));
    const auto next = torch::rand({3});
    for (const int ranks : {1, 2, 3, 4}) {
      std::size_t seen = 0;
      run_local(
          ranks,
          [&] {
            DistributedModel model(build(c, torch::kDouble, InitOrder::kAsWritten));
            EXPECT_TRUE(torch::equal(torch::rand({3}), next));
            for (const auto& [path, rank] : random_placement(c, ranks, 5)) {
              model.set_partition(path, rank);
            }
            model.place();
            for (const auto& [name, tensor] :
                 tensors_of(model.local_named_parameters(), model.local_named_buffers())) {
              EXPECT_TRUE(torch::equal(tensor, expected.at(name))) << name;
              ++seen;
            }
          },
          zoo_config("interleaved"));
      EXPECT_GE(seen, tensors_of(named(whole->named_parameters()), {}).size() / 2);
    }
  }
}

TEST(DelayedInit, TrainsLikeOneProcess) {
  for (const auto& c : all_cases()) {
    if (c.random) continue;
    SCOPED_TRACE(c.name);
    const auto reference = train_in_one_process(c);
    for (const int ranks : {1, 3}) {
      run_local(
          ranks,
          [&] {
            const auto ours = train_distributed(c, random_placement(c, ranks, 9), torch::kDouble,
                                                InitOrder::kAsWritten);
            expect_equal(ours, reference, 1e-12);
          },
          zoo_config("interleaved"));
    }
  }
}

TEST(DelayedInit, ByPathIsTheSameOnAnyNumberOfRanks) {
  const auto c = with_random_placement("tiny T5, tied");
  Named whole;
  for (const int ranks : {1, 2, 4}) {
    run_local(
        ranks,
        [&] {
          DistributedModel model(build(c, torch::kDouble, InitOrder::kByPath));
          for (const auto& [path, rank] : random_placement(c, ranks, 3)) {
            model.set_partition(path, rank);
          }
          model.place();
          for (const auto& [name, tensor] : model.local_named_parameters()) {
            const auto& expected = whole.emplace(name, tensor).first->second;
            EXPECT_TRUE(torch::equal(tensor, expected)) << name;
          }
        },
        zoo_config("interleaved"));
  }
}

TEST(DelayedInit, HasNoEffectIfSwitchedOff) {
  auto config = zoo_config("interleaved");
  config.delayed_parameter_initialization = false;
  run_local(
      1,
      [&] {
        const auto model = build(all_cases().front(), torch::kDouble, InitOrder::kAsWritten);
        EXPECT_FALSE(deferred::is_delayed(*model));
      },
      config);
}

TEST(DelayedInit, RefusesWhatNeedsValuesBeforePlacement) {
  run_local(1, [&] {
    const auto c = all_cases().front();
    auto model = build(c, torch::kDouble, InitOrder::kAsWritten);
    const auto refusal = testing::ThrowsMessage<std::exception>(
        testing::HasSubstr("smp::delay_param_initialization"));
    EXPECT_THAT([&] { model->forward(batch_of(c, 0, torch::kDouble)); }, refusal);
    torch::serialize::OutputArchive out;
    EXPECT_THAT([&] { model->save(out); }, refusal);
    EXPECT_THAT([&] { model->clone(); }, refusal);
    torch::serialize::InputArchive in;
    EXPECT_THAT([&] { model->load(in); }, refusal);
    DistributedModel placed(model);
    placed.place();
    EXPECT_FALSE(deferred::is_delayed(*model));
  });
}

}  // namespace delayed_init_test
}  // namespace smp::zoo
