// Modules with state: what a program says of them, what is refused, and what the plan tells.
#include "api/state/module_state_testing.h"
#include "base/log.h"

namespace smp {
namespace module_state_words_test {

using namespace module_state_test;  // NOLINT(google-build-using-namespace)
using module_state_test::Program;   // there is another where tests are compiled together
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

struct OrderedImpl : CountingImpl {};

/// Writes a member that changes no result.
struct PrivateImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) {
    ++calls;
    return inner(x);
  }
  nn::Linear inner = register_module("inner", linear());
  int calls = 0;
};

}  // namespace module_state_words_test

template <>
inline constexpr bool ordered_state_v<module_state_words_test::OrderedImpl> = true;
template <>
inline constexpr bool private_state_v<module_state_words_test::PrivateImpl> = true;

namespace module_state_words_test {

SMP_MODULE(Ordered);
SMP_MODULE(Private);

struct OrderedNetImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) { return last(counter(first(x))); }
  nn::Linear first = register_module("first", linear());
  Ordered counter = register_module("counter", Ordered());
  nn::Linear last = register_module("last", linear());
};
SMP_MODULE(OrderedNet);

struct PrivateNetImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) { return part(x); }
  Private part = register_module("part", Private());
};
SMP_MODULE(PrivateNet);

TEST(ModuleStateWords, OrderedStateLivesAnywhere) {
  const std::map<std::string, int> pins = {{"", 0}, {"first", 2}, {"counter", 1}, {"last", 2}};
  expect_as_in_one_process<OrderedNet>({}, pins, 3);
  expect_as_in_one_process<OrderedNet>({}, pins, 3, false);
}

TEST(ModuleStateWords, PrivateStateIsFree) {
  expect_as_in_one_process<PrivateNet>({}, {{"", 0}, {"part", 1}}, 2);
  expect_as_in_one_process<PrivateNet>({}, {{"", 0}, {"part", 1}}, 2, false);
}

// ---- refusals ----------------------------------------------------------------------------------

TEST(ModuleStateWords, APinAwayFromTheReadersIsRefused) {
  on_ranks(2, [] {
    const auto text = refusal<Error>([] { on_this_rank<Counts>({}, {{"", 0}, {"counter", 1}}); });
    EXPECT_THAT(text, AllOf(HasSubstr("counter"), HasSubstr("its members, from byte"),
                            HasSubstr("smp::ordered_state_v")));
  });
}

TEST(ModuleStateWords, StateFarAwayThatNoTrialShowedIsRefused) {
  auto config = config_of("interleaved");
  config.skip_tracing = true;
  run_local(
      2,
      [] {
        const auto text = refused_step<UnsupportedError>(1, [] {
          on_this_rank<Counts>({}, {{"", 0}, {"counter", 1}});
        });
        EXPECT_THAT(text, AllOf(HasSubstr("rank 1, module 'counter' "), HasSubstr("CountingImpl"),
                                HasSubstr("writes its members in forward: microbatches 0 and"),
                                HasSubstr("at byte"), HasSubstr("smp::private_state_v")));
      },
      config);
}

// ---- the plan ----------------------------------------------------------------------------------

template <class Net>
PartitionPlan plan_of_net(int ranks) {
  PartitionPlan plan;
  run_local(
      ranks,
      [&] {
        auto net = Program<Net>().make();
        DistributedModel model(net);
        auto evaluate = smp::step([&](const Tensor& x) { return model(x); });
        evaluate(batch(0));
        plan = model.plan();
      },
      config_of("interleaved"));
  return plan;
}

TEST(ModuleStateWords, ThePlanSaysWhatIsKeptAndWhatItCosts) {
  const auto plan = plan_of_net<Counts>(2);
  EXPECT_EQ(plan.stage_of("counter"), 0);
  EXPECT_THAT(plan.table(), AllOf(HasSubstr("the forward of counter writes its members"),
                                  HasSubstr("one microbatch at a time")));
  const auto noisy = plan_of_net<AddsNoise>(2);
  EXPECT_EQ(noisy.stage_of("noisy"), 0);
  EXPECT_THAT(noisy.table(), HasSubstr("the forward of noisy draws from a generator"));
  const auto steady = plan_of_net<AddsSteadyNoise>(2);
  EXPECT_THAT(steady.table(), Not(HasSubstr("state:")));
  const auto masks = plan_of_net<Masks>(2);
  EXPECT_THAT(masks.table(), Not(HasSubstr("state:")));
}

TEST(ModuleStateWords, ABodyThatDrawsAndAddsToWhatItKeepsIsRunInAdvance) {
  base::LogCapture log;
  run_local(
      2,
      [] {
        auto net = Program<Masks>().make();
        DistributedModel model(net);
        const auto generator = at::detail::createCPUGenerator(3);
        const auto total = at::zeros({}, at::kDouble);
        auto train = smp::step([&](const Tensor& x) {
          const auto loss = model(x + at::rand(x.sizes(), generator, x.options())).pow(2).mean();
          model.backward(loss);
          total.add_(loss.detach());
        });
        train(batch(0));
      },
      config_of("interleaved"));
  EXPECT_THAT(log.text(), Not(HasSubstr("could not be run in advance")));
}

/// A view that the body takes does not make the tensor one of this run.
TEST(ModuleStateWords, AKeptTensorThatTheBodyLooksAtIsStillKept) {
  run_local(
      2,
      [] {
        auto net = Program<Averaged>().make();
        DistributedModel model(net);
        auto evaluate = smp::step([&](const Tensor& x) {
          const auto view = net->average->average.view({-1});
          return model(x);
        });
        evaluate(batch(0));
        EXPECT_THAT(model.plan().table(), HasSubstr("average writes a tensor that it keeps"));
      },
      config_of("interleaved"));
}

TEST(ModuleStateWords, BuffersOfItsOwnDoNotTieAModule) {
  const auto plan = plan_of_net<Buffers>(2);
  EXPECT_THAT(plan.table(), AllOf(HasSubstr("the forward of vq writes 'codebook'"),
                                  HasSubstr("microbatches run one after the other"),
                                  Not(HasSubstr("one microbatch at a time"))));
}

}  // namespace module_state_words_test
}  // namespace smp
