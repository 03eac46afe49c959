// T5 with dropout in every mode: the same bits after 200 steps (docs/design.md, Static mode).
#include <gtest/gtest.h>
#include <torch/optim/adam.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "api/rank/rank.h"
#include "samples/small_t5.h"
#include "smp/smp.h"

namespace t5 {
namespace {

constexpr int kSteps = 200;

T5Config with_dropout() {
  auto config = small_config();
  config.dropout_rate = 0.1;
  return config;
}

struct Mode {
  const char* name;
  bool promised_outputs, static_mode, fast_mode;
};

/// The same in every mode, as plans need not be.
using Places = std::map<std::string, int>;
const Places kSpread{
    {"", 0}, {"encoder.block.1", 1}, {"decoder.block.0", 2}, {"decoder.block.1", 1}};
/// Each block of the decoder takes what the encoder has returned.
const Places kWholeEncoder{{"", 0}, {"encoder", 1}, {"decoder.block.0", 2}, {"decoder.block.1", 2}};

struct Trained {
  std::vector<double> losses;
  std::map<std::string, Tensor> parameters;
  std::uint64_t control_messages = 0;  // of all ranks, in the last ten steps
};

std::uint64_t control_messages() {
  return smp::Rank::current().server().core().port.control_messages();
}

Trained train(const Mode& mode, const Places& places, int steps) {
  smp::Config settings;
  settings.microbatches = 4;
  settings.plan_cache = "off";
  settings.promised_outputs = mode.promised_outputs;
  settings.static_mode = mode.static_mode;
  settings.fast_mode = mode.fast_mode;
  Trained trained;
  smp::run_local(
      3,
      [&] {
        torch::manual_seed(7);
        T5 net(with_dropout());
        smp::DistributedModel model(net);
        for (const auto& [path, stage] : places) model.set_partition(path, stage);
        smp::DistributedOptimizer optimizer(model, torch::optim::Adam(net->parameters(), 1e-3));
        auto run = smp::step([&](const Tensor& ids, const Tensor& labels) {
          const auto logits = model(ids, labels);
          const auto loss =
              torch::nn::functional::cross_entropy(logits.flatten(0, 1), labels.flatten());
          model.backward(loss);
          return loss.detach();
        });
        std::uint64_t before = 0;
        for (int step = 0; step < steps; ++step) {
          if (step == steps - 10) before = control_messages();
          const auto ids = (torch::arange(8 * 6).reshape({8, 6}) * (3 + step)) % 20 + 3;
          optimizer.zero_grad();
          const auto loss = run(ids, ids.flip(1)).reduce_mean();
          if (smp::rank() == 0) trained.losses.push_back(loss.item<double>());
          optimizer.step();
        }
        trained.control_messages += control_messages() - before;
        for (const auto& [name, parameter] : model.local_named_parameters()) {
          trained.parameters[name] = parameter.detach().clone();
        }
      },
      settings);
  return trained;
}

TEST(T5Modes, GiveTheSameBitsAfter200Steps) {
  const auto relayed = train({"relayed", false, false, true}, kSpread, kSteps);
  ASSERT_EQ(relayed.losses.size(), static_cast<std::size_t>(kSteps));
  EXPECT_LT(relayed.losses.back(), relayed.losses.front()) << "it learns";
  for (const Mode& mode :
       {Mode{"promised", true, false, true}, Mode{"static, relayed", true, true, false},
        Mode{"fast", true, true, true}}) {
    SCOPED_TRACE(mode.name);
    const auto other = train(mode, kSpread, kSteps);
    EXPECT_EQ(other.losses, relayed.losses);
    EXPECT_EQ(other.control_messages == 0, mode.static_mode);
    ASSERT_EQ(other.parameters.size(), relayed.parameters.size());
    for (const auto& [name, parameter] : relayed.parameters) {
      EXPECT_TRUE(torch::equal(other.parameters.at(name), parameter)) << name;
    }
  }
}

TEST(T5Modes, ReplayedStepsHaveNoControlMessages) {
  const auto relayed = train({"relayed", false, false, true}, kWholeEncoder, 20);
  for (const bool fast : {false, true}) {
    SCOPED_TRACE(fast);
    const auto other =
        train({fast ? "fast" : "static, relayed", true, true, fast}, kWholeEncoder, 20);
    EXPECT_EQ(other.losses, relayed.losses);
    EXPECT_EQ(other.control_messages, 0u);
  }
}

}  // namespace
}  // namespace t5
