// A loop whose bodies call no model.backward() is told so, once, and no other loop is.
#include <gmock/gmock.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <string>

#include "smp/smp.h"

namespace smp {
namespace missing_backward_test {

using at::Tensor;
using testing::HasSubstr;
using testing::Not;

enum class Loop { kForgets, kTrains, kEvaluates, kFillsIn };

/// What ranks say while one steps an optimizer after each of three steps.
std::string told(Loop loop, int ranks) {
  Config config;
  config.microbatches = 2;
  config.plan_cache = "off";
  config.skip_tracing = true;
  testing::internal::CaptureStderr();
  run_local(ranks,
            [&] {
              nn::Sequential net(nn::Linear(3, 3), nn::Linear(3, 3));
              DistributedModel model(net);
              model.set_partition("", 0);
              model.set_partition("0", ranks - 1);
              model.set_partition("1", ranks - 1);
              DistributedOptimizer optimizer(model, torch::optim::SGD(net->parameters(), 0.1));
              auto run = smp::step([&](const Tensor& x) {
                const auto loss = model(x).square().mean();
                if (loop == Loop::kTrains) model.backward(loss);
              });
              const at::AutoGradMode grad(loop != Loop::kEvaluates);
              for (int step = 0; step < 3; ++step) {
                optimizer.zero_grad();
                run(torch::ones({4, 3}));
                if (loop == Loop::kFillsIn) {
                  for (auto& parameter : model.local_parameters()) {
                    parameter.mutable_grad() = torch::ones_like(parameter);
                  }
                }
                optimizer.step();
              }
            },
            config, {.seed = 1});
  return testing::internal::GetCapturedStderr();
}

const char* const kWords = "called no model.backward(loss)";

TEST(MissingBackward, IsToldOnce) {
  for (const int ranks : {1, 2}) {
    const auto text = told(Loop::kForgets, ranks);
    EXPECT_THAT(text, HasSubstr(kWords)) << ranks;
    EXPECT_EQ(text.find(kWords), text.rfind(kWords)) << ranks;
  }
}

TEST(MissingBackward, IsNotMissedWhereNothingLacksIt) {
  for (const int ranks : {1, 2}) {
    EXPECT_THAT(told(Loop::kTrains, ranks), Not(HasSubstr(kWords))) << ranks;
    EXPECT_THAT(told(Loop::kEvaluates, ranks), Not(HasSubstr(kWords))) << ranks;
  }
  EXPECT_THAT(told(Loop::kFillsIn, 1), Not(HasSubstr(kWords)));
}

}  // namespace missing_backward_test
}  // namespace smp
