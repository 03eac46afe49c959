// Modules that are not cut: a plan with and without the key keep_whole.
#include "api/model/keep_whole.h"

#include <gmock/gmock.h>
#include <torch/types.h>

#include <functional>
#include <set>

#include "api/two_ranks.h"
#include "smp/plan.h"

namespace smp {
namespace keep_whole_test {

using testing::AllOf;
using testing::HasSubstr;

struct AttentionImpl : torch::nn::Module {
  AttentionImpl()
      : q(register_module("q", nn::Linear(64, 64))), k(register_module("k", nn::Linear(64, 64))) {}
  at::Tensor forward(const at::Tensor& x) { return q(x) + k(x); }
  nn::Linear q, k;
};
SMP_MODULE(Attention);

struct BlockImpl : torch::nn::Module {
  BlockImpl()
      : attention(register_module("attention", Attention())),
        out(register_module("out", nn::Linear(64, 64))) {}
  at::Tensor forward(const at::Tensor& x) { return out(attention(x)); }
  Attention attention;
  nn::Linear out;
};
SMP_MODULE(Block);

/// The stages of a plan for a block on two ranks, by path.
PartitionPlan plan_with(const std::string& keep) {
  PartitionPlan plan;
  Config config;
  config.plan_cache = "off";
  config.skip_tracing = true;
  config.keep_whole = keep;
  run_local(
      2,
      [&] {
        Block block;
        DistributedModel model(block);
        model.place();
        plan = model.plan();
      },
      config);
  return plan;
}

/// Of the attention and its parts.
std::set<int> stages_of_attention(const PartitionPlan& plan) {
  std::set<int> stages;
  for (const char* path : {"attention", "attention.q", "attention.k"}) {
    stages.insert(plan.stage_of(path));
  }
  return stages;
}

TEST(KeepWhole, LeavesAModuleOnOneStageThatWouldBeCut) {
  ASSERT_EQ(stages_of_attention(plan_with("")).size(), 2u) << "else nothing is to be kept";
  for (const char* name : {"Attention", "AttentionImpl", "Linear , Attention"}) {
    const auto plan = plan_with(name);
    EXPECT_EQ(stages_of_attention(plan).size(), 1u) << name;
    EXPECT_NE(plan.stage_of("out"), plan.stage_of("attention")) << name;
  }
}

TEST(KeepWhole, SaysInThePlanWhatKeepsAModule) {
  const auto plan = plan_with("Attention");
  for (const auto& row : plan.rows()) {
    if (row.path == "attention.k") {
      EXPECT_THAT(row.why, HasSubstr("keep_whole has Attention, and \"attention\" is one"));
    }
  }
}

TEST(KeepWhole, RefusesATypeThatNoModuleHasAndNamesTheNearest) {
  EXPECT_THAT(refusal([] { plan_with("Atention"); }),
              AllOf(HasSubstr("keep_whole: no module is a \"Atention\""),
                    HasSubstr("did you mean \"Attention\"?")));
}

TEST(KeepWhole, RefusesToPlaceAPartElsewhere) {
  Config config;
  config.keep_whole = "Attention";
  config.plan_cache = "off";
  run_local(
      2,
      [] {
        Block block;
        DistributedModel model(block);
        model.set_partition("attention", 0);
        model.set_partition("attention.q", 1);
        EXPECT_THAT(refusal([&] { model.place(); }),
                    AllOf(HasSubstr("attention.q"), HasSubstr("keep_whole has Attention")));
      },
      config);
}

}  // namespace keep_whole_test
}  // namespace smp
