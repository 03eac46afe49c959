// Steps of two and three ranks, without a session: what they compute equals LibTorch, what they
// send follows formulas, and schedules order it.
#include "server/engine/module_server.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/variable.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/engine/module_server_testing.h"
#include "support/refusal.h"

namespace smp::server::test {
namespace module_server_test {

using ::testing::HasSubstr;

// ---- gradients ---------------------------------------------------------------------------------

TEST_F(ModuleServerTest, GradientsEqualThoseOfLibTorchInEveryInterleaving) {
  for (const int ranks : {2, 3}) {
    for (std::uint64_t seed = 0; seed < 10; ++seed) {
      on_ranks(
          ranks,
          [&](ModuleServer& server, Ring& model) {
            step(server, model, train, 3);
            collect_gradients(server, model, ranks);
          },
          seed);
      expect_gradients_of_libtorch(3);
    }
  }
}

TEST_F(ModuleServerTest, TheResultOfACallIsThatOfLibTorch) {
  on_ranks(3, [&](ModuleServer& server, Ring& model) {
    step(server, model, [](int, Ring& ring, StepEngine&) {
      const auto x = input_of(4);
      const auto y = ring(x);
      EXPECT_TRUE(y.requires_grad());
      EXPECT_TRUE(at::equal(y, Ring()(x)));
      const at::NoGradGuard no_grad;
      EXPECT_FALSE(ring(x).requires_grad());
    });
  });
}

TEST_F(ModuleServerTest, WeightsScaleTheMicrobatches) {
  on_ranks(2, [&](ModuleServer& server, Ring& model) {
    StepTask task;
    task.microbatches = 2;
    task.schedule = schedule_.get();
    task.weights = {0.5, 0.25};
    task.body = [&](int microbatch) { train(microbatch, model, server.engine()); };
    server.run_step(task);
    collect_gradients(server, model, 2);
  });
  Ring model;
  for (int i = 0; i < 2; ++i) (model(input_of(i)).sum() * (i == 0 ? 0.5 : 0.25)).backward();
  const auto parameters = model->parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    EXPECT_TRUE(at::equal(gradients_[i], parameters[i].grad())) << i;
  }
}

TEST_F(ModuleServerTest, GradientsOfLaterStepsAreAdded) {
  on_ranks(2, [&](ModuleServer& server, Ring& model) {
    for (int i = 0; i < 3; ++i) {
      step(server, model, [i](int, Ring& ring, StepEngine& engine) { train(i, ring, engine); });
    }
    EXPECT_EQ(server.steps(), 3);
    collect_gradients(server, model, 2);
  });
  expect_gradients_of_libtorch(3);
}

// ---- counts ------------------------------------------------------------------------------------

TEST_F(ModuleServerTest, RequestsFollowClosedFormulas) {
  constexpr std::uint64_t kMicrobatches = 4;
  std::vector<ServerCounters> counters(3);
  std::uint64_t frames = 0;
  on_ranks(3, [&](ModuleServer& server, Ring& model) {
    step(server, model, train, kMicrobatches);
    counters[server.rank().index()] = server.core().counters;
    frames = servers_->hub().frames_sent();
  });
  // A microbatch: the body calls rank 1 and rank 2, and rank 1 calls rank 2.
  EXPECT_EQ(counters[0].forward_requests, 2 * kMicrobatches);
  EXPECT_EQ(counters[1].forward_requests, kMicrobatches);
  EXPECT_EQ(counters[2].forward_requests, 0u);
  EXPECT_EQ(counters[0].executed_forward, 0u);
  EXPECT_EQ(counters[1].executed_forward, kMicrobatches);
  EXPECT_EQ(counters[2].executed_forward, 2 * kMicrobatches);
  for (const auto& counts : counters) {
    EXPECT_EQ(counts.backward_requests, counts.forward_requests);
    EXPECT_EQ(counts.executed_backward, counts.executed_forward);
    EXPECT_EQ(counts.records_left, 0u);
    EXPECT_EQ(counts.swallowed, 0u);
  }
  // Four messages a call; two a microbatch and three a step between pp_rank 0 and each other rank.
  EXPECT_EQ(frames, 4 * 3 * kMicrobatches + 2 * (2 * kMicrobatches + 3));
}

TEST_F(ModuleServerTest, WhatNeedsNoGradientLeavesNoRecord) {
  on_ranks(2, [&](ModuleServer& server, Ring& model) {
    step(server, model, [&](int, Ring& ring, StepEngine&) {
      const at::NoGradGuard no_grad;
      ring(input_of(0));
      EXPECT_EQ(servers_->server(1).core().step->records.size(), 0u);
    });
    EXPECT_EQ(server.core().counters.backward_requests, 0u);
    EXPECT_EQ(server.core().counters.records_left, 0u);
  });
}

TEST_F(ModuleServerTest, ARecordThatNobodyWillUseIsFreed) {
  on_ranks(2, [&](ModuleServer& server, Ring& model) {
    step(server, model, [&](int, Ring& ring, StepEngine&) {
      const auto& records = servers_->server(1).core().step->records;
      auto y = ring->fussy(input_of(0));
      EXPECT_EQ(records.size(), 1u);
      y = at::Tensor();
      LocalServers::sleep(base::kSecond);
      EXPECT_EQ(records.size(), 0u);
    });
    EXPECT_EQ(server.core().counters.records_left, 0u);
  });
}

TEST_F(ModuleServerTest, ARecordThatIsHeldUntilTheEndIsCounted) {
  on_ranks(2, [&](ModuleServer& server, Ring& model) {
    at::Tensor held;
    step(server, model, [&](int, Ring& ring, StepEngine&) { held = ring->fussy(input_of(0)); });
    EXPECT_EQ(server.core().counters.records_left, server.rank().value() == 1 ? 1u : 0u);
    step(server, model, train);  // the graph that is left does no harm
    if (!held.defined()) return;
    EXPECT_THAT(refusal([&] {
                  run_backward({torch::autograd::impl::gradient_edge(held)}, {at::ones_like(held)});
                }),
                HasSubstr("its step is over"));
  });
}

// ---- schedules ---------------------------------------------------------------------------------

TEST_F(ModuleServerTest, TheScheduleOrdersForwardsAndBackwards) {
  const auto order_under = [this](std::unique_ptr<schedule::Schedule> schedule) {
    schedule_ = std::move(schedule);
    std::string order;
    on_ranks(3, [&](ModuleServer& server, Ring& model) {
      step(
          server, model,
          [&](int microbatch, Ring& ring, StepEngine& engine) {
            const auto loss = ring(input_of(microbatch)).sum();
            EXPECT_EQ(engine.current_microbatch(), microbatch);
            order += 'F';
            engine.backward({loss}, {}, false);
            order += 'B';
          },
          2);
      collect_gradients(server, model, 3);
    });
    expect_gradients_of_libtorch(2);
    return order;
  };
  EXPECT_EQ(order_under(schedule::make_simple()), "FFBB");
  EXPECT_EQ(order_under(schedule::make_interleaved(1)), "FBFB");
}

TEST_F(ModuleServerTest, OutputsOfTheBodyReachEveryRank) {
  on_ranks(3, [&](ModuleServer& server, Ring& model) {
    const bool first = server.rank().value() == 0;
    std::vector<Packet> outputs(first ? 2 : 0);
    StepTask task;
    task.microbatches = 2;
    task.schedule = schedule_.get();
    task.weights = {1, 1};
    task.outputs = &outputs;
    task.body = [&](int microbatch) {
      const auto index = static_cast<std::size_t>(microbatch);
      outputs[index] = {std::to_string(microbatch), {model(input_of(microbatch)).detach()}};
    };
    server.run_step(task);
    ASSERT_EQ(outputs.size(), 2u);
    EXPECT_EQ(outputs[1].bytes, "1");
    EXPECT_TRUE(at::equal(outputs[1].tensors.at(0), Ring()(input_of(1))));
  });
}

TEST_F(ModuleServerTest, MessagesOfALaterStepWait) {
  on_ranks(3, [&](ModuleServer& server, Ring& model) {
    for (int i = 0; i < 3; ++i) {
      if (server.rank().value() != 0) {
        LocalServers::sleep((server.rank().value() + 1) * base::kSecond);
        EXPECT_EQ(server.core().counters.executed_forward,
                  static_cast<std::uint64_t>(i * server.rank().value()));
      }
      step(server, model, [i](int, Ring& ring, StepEngine& engine) { train(i, ring, engine); });
    }
    collect_gradients(server, model, 3);
  });
  expect_gradients_of_libtorch(3);
}

}  // namespace module_server_test
}  // namespace smp::server::test
