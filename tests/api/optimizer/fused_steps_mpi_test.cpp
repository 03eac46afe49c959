// Steps of a program's own between processes, where large tensors are lent, not copied: what is
// lent of a parameter stays what it was, and the next step gets what the parameter is.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <map>
#include <string>
#include <vector>

#include "api/optimizer/user_steps.h"
#include "smp/smp.h"
#include "support/own_mpi.h"

namespace smp {
namespace fused_steps_mpi_test {

using namespace user_steps;

constexpr std::int64_t kWidth = 128;  // a weight has 128 KiB

/// Gives its weight away, and takes one.
struct SpreadImpl : torch::nn::Module {
  SpreadImpl()
      : weight(register_parameter("weight", torch::randn({kWidth, kWidth}, torch::kDouble) / 16)) {}
  Tensor forward(const Tensor& x, const Tensor& other) { return x.mm(weight).tanh().mm(other); }
  Tensor read() { return weight; }
  Tensor weight;
};
SMP_MODULE(Spread, read);

struct RoundImpl : torch::nn::Module {
  RoundImpl()
      : own(register_parameter("own", torch::randn({kWidth, kWidth}, torch::kDouble) / 16)),
        near(register_module("near", Spread())),
        far(register_module("far", Spread())) {}
  Tensor forward(const Tensor& x) { return far(near(x, far->read()), own) + x; }
  Tensor own;
  Spread near, far;
};
SMP_MODULE(Round);

Round make() {
  torch::manual_seed(2);
  return {};
}
Tensor batch() { return torch::linspace(-1, 1, 8 * kWidth, torch::kDouble).reshape({8, kWidth}); }
Tensor loss_of(const Tensor& y) { return y.square().mean(); }

constexpr int kSteps = 8, kMicrobatches = 4;

std::vector<double> train_plain(UserStep way) {
  auto net = make();
  UserOptimizer optimizer(net->parameters(), way);
  std::vector<double> losses;
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    double sum = 0;
    for (const auto& x : batch().chunk(kMicrobatches)) {
      const auto loss = loss_of(net(x)) / kMicrobatches;
      loss.backward();
      sum += loss.item<double>();
    }
    losses.push_back(sum);
    optimizer.step();
  }
  return losses;
}

class FusedStepsOverMpi : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Schedules, FusedStepsOverMpi, testing::Values("simple", "interleaved"));

TEST_P(FusedStepsOverMpi, EqualOneProcess) {
  for (const auto way : kWays) {
    const auto expected = train_plain(way);
    for (const bool repeats : {false, true}) {
      SCOPED_TRACE(testing::Message() << name_of(way) << (repeats ? ", static" : ""));
      static int argc = 0;
      static char* argv[] = {nullptr};
      Config config;
      config.microbatches = kMicrobatches;
      config.plan_cache = "off";
      config.pipeline = GetParam();
      config.static_mode = config.fast_mode = repeats;
      const auto session = init(argc, argv, config);
      auto net = make();
      DistributedModel model(net);
      model.set_partition("", 0);
      model.set_partition("near", size() - 1);
      model.set_partition("far", 1);
      DistributedOptimizer optimizer(model, UserOptimizer(model.parameters(), way));
      auto run = smp::step([&](Tensor x) {
        auto loss = loss_of(model(x));
        model.backward(loss);
        return loss;
      });
      for (int step = 0; step < kSteps; ++step) {
        optimizer.zero_grad();
        const auto loss = run(batch()).reduce_mean().item<double>();
        EXPECT_NEAR(loss, expected[static_cast<std::size_t>(step)], 1e-12) << "step " << step;
        optimizer.step();
      }
    }
  }
}

}  // namespace fused_steps_mpi_test
}  // namespace smp
