// device/offload_test.cpp: what checkpointed modules keep leaves the device, and training has the
// same bits.
#include "server/recompute/offload.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <algorithm>
#include <string>
#include <vector>

#include "server/recompute/ahead.h"
#include "smp/distributed_model.h"
#include "smp/session.h"
#include "smp/step.h"
#include "support/fake_device.h"
#include "support/residual_net.h"

namespace smp {
namespace device_offload_test {

using at::Tensor;

constexpr std::int64_t kWidth = 64, kRows = 512;  // 64 KiB a tensor and microbatch
constexpr int kBlocks = 6, kMicrobatches = 2;

struct Outcome {
  std::vector<Tensor> gradients;  // of all ranks
  server::Offload::Counters counters;
  std::int64_t ahead = 0;  ///< calls that were computed again before their backward asked
};

constexpr server::RecomputeAhead::Credit kNothingAhead{.one_call = false};

Outcome train(int ranks, const std::string& schedule, int horizon, int microbatches = kMicrobatches,
              int steps = 1, const server::RecomputeAhead::Credit& credit = kNothingAhead) {
  static_cast<void>(support::fake_device());
  Config config;
  config.device = "fake";
  config.pipeline = schedule;
  config.microbatches = microbatches;
  config.checkpoint_modules = config.keep_whole = "Block";  // a part elsewhere keeps arguments, too
  config.offload_activations = horizon >= 0;
  config.activation_loading_horizon = std::max(0, horizon);
  Outcome outcome;
  outcome.gradients.resize(kBlocks * 4);
  const auto computed_ahead = [ranks] {
    std::int64_t all = 0;
    for (int i = 0; i < ranks; ++i) all += server::RecomputeAhead::of(i)->computed();
    return all;
  };
  outcome.ahead = -computed_ahead();
  run_local(ranks,
            [&] {
              torch::manual_seed(1);
              support::ResidualNet net(kBlocks, kWidth);
              net->to(device());
              DistributedModel model(net);
              auto run = step([&](const Tensor& x) {
                const auto loss = model(x);
                model.backward(loss);
                return loss;
              });
              for (int i = 0; i < steps; ++i) {
                run(torch::randn({microbatches * kRows, kWidth}).to(device()));
                server::RecomputeAhead::of(rank())->set_credit(credit);
              }
              const auto all = net->parameters();
              for (std::size_t i = 0; i < all.size(); ++i) {
                if (all[i].grad().defined()) outcome.gradients[i] = all[i].grad().to(at::kCPU);
              }
            },
            config, {1});
  outcome.ahead += computed_ahead();
  if (const auto offload = server::Offload::current()) outcome.counters = offload->counters();
  server::Offload::set_current(nullptr);
  return outcome;
}

TEST(OffloadOnDevice, TrainsWithTheSameBits) {
  for (const int ranks : {1, 2}) {
    for (const auto* schedule : {"interleaved", "simple"}) {
      SCOPED_TRACE(testing::Message() << schedule << ", " << ranks << " ranks");
      const auto held = train(ranks, schedule, -1);
      EXPECT_EQ(held.counters.sent, 0);
      for (const int horizon : {0, 3}) {
        const auto away = train(ranks, schedule, horizon);
        EXPECT_EQ(away.counters.sent, kBlocks * kMicrobatches);
        EXPECT_EQ(away.counters.stayed, 0);
        EXPECT_EQ(away.counters.ahead + away.counters.late, away.counters.sent);
        if (horizon == 0) {
          EXPECT_EQ(away.counters.ahead, 0);
        } else {
          EXPECT_GE(away.counters.ahead, away.counters.sent / 2);
        }
        for (std::size_t i = 0; i < held.gradients.size(); ++i) {
          ASSERT_TRUE(held.gradients[i].defined()) << i;
          EXPECT_TRUE(away.gradients[i].equal(held.gradients[i])) << i;
        }
      }
    }
  }
}

/// What a rank computes again while it would idle comes back for that.
TEST(OffloadOnDevice, ComesBackForWhatIsComputedAhead) {
  constexpr int kMore = 4, kSteps = 2;  // microbatches run one after the other in the first step
  for (const auto* schedule : {"interleaved", "simple"}) {
    const auto held = train(2, schedule, -1, kMore, kSteps);
    for (const int horizon : {0, 3}) {
      for (const std::int64_t bytes : {std::int64_t{0}, std::int64_t{1} << 30}) {
        SCOPED_TRACE(testing::Message() << schedule << ", horizon " << horizon << ", " << bytes);
        const auto away =
            train(2, schedule, horizon, kMore, kSteps, {.one_call = true, .bytes = bytes});
        EXPECT_GT(away.ahead, 0);
        EXPECT_EQ(away.counters.sent, kSteps * kBlocks * kMore);
        EXPECT_EQ(away.counters.ahead + away.counters.late, away.counters.sent);
        for (std::size_t i = 0; i < held.gradients.size(); ++i) {
          EXPECT_TRUE(away.gradients[i].equal(held.gradients[i])) << i;
        }
      }
    }
  }
}

/// Between forward and backward the device holds one block's input, and the host the others.
TEST(OffloadOnDevice, LeavesTheDevice) {
  constexpr std::int64_t kInput = kRows * kWidth * 4;
  const auto live_between = [&](bool offload) {
    Config config;
    config.device = "fake";
    config.microbatches = 1;
    config.checkpoint_modules = "Block";
    config.offload_activations = offload;
    std::int64_t live = 0;
    run_local(1,
              [&] {
                support::ResidualNet net(kBlocks, kWidth);
                net->to(device());
                DistributedModel model(net);
                auto run = step([&](const Tensor& x) {
                  const auto loss = model(x);
                  live = support::fake_live_bytes();
                  model.backward(loss);
                  return loss;
                });
                run(torch::ones({kRows, kWidth}).to(device()));
              },
              config, {1});
    server::Offload::set_current(nullptr);
    return live;
  };
  const auto held = live_between(false), away = live_between(true);
  EXPECT_GE(held - away, (kBlocks - 1) * kInput);
}

}  // namespace device_offload_test
}  // namespace smp
