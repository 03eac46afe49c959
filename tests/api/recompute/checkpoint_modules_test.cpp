// The key checkpoint_modules: modules that are checkpointed by type.
#include "api/model/checkpoint_modules.h"

#include <torch/types.h>

#include <string>
#include <vector>

#include "api/two_ranks.h"

namespace smp {
namespace checkpoint_modules_test {

using at::Tensor;
using testing::AllOf;
using testing::HasSubstr;

int forwards = 0;

struct CountedImpl : torch::nn::Module {
  CountedImpl() : linear(register_module("linear", nn::Linear(3, 3))) { to(torch::kDouble); }
  Tensor forward(const Tensor& x) {
    ++forwards;
    return linear(x).tanh();
  }
  nn::Linear linear;
};
SMP_MODULE(Counted);

struct PairImpl : torch::nn::Module {
  PairImpl()
      : a(register_module("a", Counted())),
        b(register_module("b", nn::Linear(3, 3))),
        c(register_module("c", Counted())) {
    to(torch::kDouble);
  }
  Tensor forward(const Tensor& x) { return c(b(a(x))); }
  Counted a;
  nn::Linear b;
  Counted c;
};
SMP_MODULE(Pair);

/// The weights' gradients, on one rank.
std::vector<Tensor> gradients_with(const std::string& types) {
  std::vector<Tensor> gradients;
  Config config;
  config.plan_cache = "off";
  config.skip_tracing = true;  // or the trial would be counted
  config.microbatches = 2;
  config.checkpoint_modules = types;
  run_local(1,
            [&] {
              Pair net;
              DistributedModel model(net);
              model.place();
              auto step = smp::step([&](Tensor x) { model.backward(model(x).square().sum()); });
              forwards = 0;
              step(rows(4));
              for (const auto& parameter : net->parameters()) gradients.push_back(parameter.grad());
            },
            config, {.seed = 1});
  return gradients;
}

TEST(CheckpointModules, MarksModulesByType) {
  const auto kept = gradients_with("");
  EXPECT_EQ(forwards, 4);  // two modules, two microbatches
  for (const char* types : {"Counted", "Linear, CountedImpl"}) {
    const auto dropped = gradients_with(types);
    EXPECT_EQ(forwards, 8) << types;
    ASSERT_EQ(dropped.size(), kept.size());
    for (std::size_t i = 0; i < kept.size(); ++i) EXPECT_TRUE(torch::equal(dropped[i], kept[i]));
  }
}

TEST(CheckpointModules, MarksModulesByPath) {
  const auto marked = [](const std::string& path) {
    int count = 0;
    Config config;
    config.plan_cache = "off";
    run_local(1,
              [&] {
                Pair net;
                DistributedModel model(net);
                set_activation_checkpointing(model, path);
                auto train = step([&](const Tensor& x) { model.backward(model(x).sum()); });
                train(rows(4));
                for (const auto& row : model.plan().rows()) count += row.recomputed ? 1 : 0;
              },
              config, {.seed = 1});
    return count;
  };
  EXPECT_EQ(marked("a.linear"), 1);
  EXPECT_EQ(marked(""), 6);  // with all below
  EXPECT_THAT(refusal([&] { marked("a.liner"); }),
              AllOf(HasSubstr("the model has no module \"a.liner\""),
                    HasSubstr("did you mean \"a.linear\"?")));
}

/// Every call is larger than the one before.
struct GrowingImpl : torch::nn::Module {
  GrowingImpl() : linear(register_module("linear", nn::Linear(3, 3))) {}
  Tensor forward(const Tensor& x) { return linear(x).tanh() * ++calls; }
  nn::Linear linear;
  std::int64_t calls = 0;
};
SMP_MODULE(Growing);

/// A second run would count twice.
TEST(CheckpointModules, HoldsWhatWritesItsMembers) {
  const auto gradients = [](const std::string& types) {
    std::vector<Tensor> result;
    Config config;
    config.microbatches = 2;
    config.plan_cache = "off";
    config.checkpoint_modules = types;
    run_local(2,
              [&] {
                Growing net;
                DistributedModel model(net);
                auto train = step([&](const Tensor& x) { model.backward(model(x).sum()); });
                for (int i = 0; i < 3; ++i) train(torch::ones({4, 3}));
                if (rank() != 0) return;
                for (const auto& parameter : net->parameters()) result.push_back(parameter.grad());
              },
              config, {.seed = 1});
    return result;
  };
  const auto kept = gradients("");
  base::LogCapture log;
  const auto marked = gradients("Growing");
  ASSERT_EQ(kept.size(), marked.size());
  for (std::size_t i = 0; i < kept.size(); ++i) EXPECT_TRUE(torch::equal(kept[i], marked[i]));
  EXPECT_THAT(log.text(),
              AllOf(HasSubstr("module '<root>' (Growing) is marked to be computed again"),
                    HasSubstr("writes its members"), HasSubstr("its activations are held")));
}

/// A type may be in some models of a program only.
TEST(CheckpointModules, KnowsAllModelsOfASession) {
  Config config;
  config.plan_cache = "off";
  config.checkpoint_modules = "Counted";
  run_local(1,
            [] {
              Pair first;
              nn::Linear second(3, 3);
              DistributedModel a(first);
              DistributedModel b(second);
              a.place();
              b.place();
            },
            config, {.seed = 1});
}

TEST(CheckpointModules, RefusesATypeThatNoModuleHasAndNamesTheNearest) {
  EXPECT_THAT(refusal([] { gradients_with("Countd"); }),
              AllOf(HasSubstr("checkpoint_modules: no module is a \"Countd\""),
                    HasSubstr("did you mean \"Counted\"?")));
}

}  // namespace checkpoint_modules_test
}  // namespace smp
