// Plans of models that keep state which others may read: such steps run one microbatch at a time,
// and so they are predicted, whatever the schedule.
#include <gmock/gmock.h>

#include <algorithm>

#include "api/two_ranks.h"

namespace smp {
namespace shared_state_plan_test {

using at::Tensor;

struct WideImpl : torch::nn::Module {
  WideImpl()
      : out(register_module("out", nn::Linear(64, 256))),
        back(register_module("back", nn::Linear(256, 64))) {}
  Tensor forward(const Tensor& x) { return x + back(torch::tanh(out(x))); }
  nn::Linear out, back;
};
SMP_MODULE(Wide);

struct StatelyNetImpl : torch::nn::Module {
  StatelyNetImpl()
      : first(register_module("first", Wide())), second(register_module("second", Wide())) {}
  Tensor forward(const Tensor& x) { return second(first(x)); }
  Wide first, second;
};
/// The same, and it says that it keeps something.
struct KeepingNetImpl : StatelyNetImpl {};

}  // namespace shared_state_plan_test

template <>
inline constexpr bool shared_state_v<shared_state_plan_test::KeepingNetImpl> = true;

namespace shared_state_plan_test {

SMP_MODULE(StatelyNet);
SMP_MODULE(KeepingNet);

template <class Net>
PlanSummary summary_of() {
  Config config;
  config.microbatches = 8;
  config.pipeline = "simple";
  config.plan_cache = "off";
  PlanSummary summary;
  run_local(2,
            [&] {
              Net net;
              DistributedModel model(net);
              auto train = smp::step([&](const Tensor& x) {
                const auto loss = model(x).pow(2).mean();
                model.backward(loss);
                return loss;
              });
              train(torch::ones({8 * 64, 64}));
              if (rank() == 0) summary = *model.plan().summary();
            },
            config, {.seed = 1});
  return summary;
}

std::int64_t most_of(const PlanSummary& summary) {
  std::int64_t most = 0;
  for (const auto& stage : summary.stages) most = std::max(most, stage.most_activations);
  return most;
}

TEST(SharedStatePlan, IsThatOfOneMicrobatchAfterTheOther) {
  const auto free = summary_of<StatelyNet>();
  const auto keeping = summary_of<KeepingNet>();
  EXPECT_EQ(free.pipeline, "simple");
  EXPECT_LT(free.chosen.bubble, 0.4);
  EXPECT_GT(keeping.chosen.bubble, 0.45) << "while one stage works, the other waits";
  // One of eight is there, but all gradients are soon; the others hold most before any is.
  EXPECT_LT(3 * most_of(keeping), most_of(free));
}

}  // namespace shared_state_plan_test
}  // namespace smp
