// A failure on one rank ends one step on every rank, with one text, and the next step is fine.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "server/engine/module_server.h"
#include "server/engine/module_server_testing.h"
#include "smp/error.h"
#include "support/refusal.h"

namespace smp::server::test {
namespace module_server_failure_test {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// ---- exceptions --------------------------------------------------------------------------------

TEST_F(ModuleServerTest, AnExceptionOfARemoteModuleEndsTheStepOnEveryRank) {
  for (const int ranks : {2, 3}) {
    const auto texts = failures_of(ranks, [](int, Ring& ring, StepEngine&) { ring(-input_of(0)); });
    EXPECT_THAT(texts, Each(AllOf(HasSubstr("module fussy (forward), microbatch 0"),
                                  HasSubstr("x is negative"))));
  }
}

TEST_F(ModuleServerTest, AnExceptionOfARemoteBackwardEndsTheStepOnEveryRank) {
  for (const int ranks : {2, 3}) {
    const auto texts = failures_of(ranks, [](int, Ring& ring, StepEngine& engine) {
      engine.backward({-ring(input_of(0)).sum()}, {}, false);
    });
    EXPECT_THAT(texts, Each(AllOf(HasSubstr("module fussy (backward), microbatch 0"),
                                  HasSubstr("the gradient is negative"))));
  }
}

// Between steps a rank may wait for replicas, or for a checkpoint.
TEST(ModuleServerBetweenSteps, WhatMakesNoSenseEndsAllWaits) {
  LocalServers servers(2);
  servers.run([&](ModuleServer& server) {
    if (server.rank() == PpRank(1)) {
      servers.channel(PpRank(1)).send(GlobalRank(0), d2d::Port::kServer, {}, "no message", {});
    }
    LocalServers::sleep(base::kSecond);
    if (server.rank() == PpRank(0)) {
      EXPECT_THAT(servers.aborted, ::testing::SizeIs(1));
    }
  });
}

/// In a poll, where nobody takes what is thrown.
TEST(ModuleServerBetweenSteps, AStallQuestionThatCannotBeSentEndsAllWaits) {
  LocalServers servers(2, 1, Time::kReal);
  servers.options().stall_seconds = 0.2;
  servers.run([&](ModuleServer& server) {
    if (server.rank() == PpRank(1)) {
      d2d::ByteBuffer damaged;
      damaged.resize(3);
      const auto& routes = servers.channel(PpRank(1)).routes();
      routes.control(GlobalRank(0)).post(GlobalRank(0), std::move(damaged));
    }
    LocalServers::sleep(base::kSecond);
  });
  ASSERT_GT(servers.aborted.size(), 1u);
  EXPECT_THAT(servers.aborted.back(), HasSubstr("the channel has failed before"));
}

TEST_F(ModuleServerTest, ABodyMayHandleAnExceptionOfARemoteForward) {
  on_ranks(2, [&](ModuleServer& server, Ring& model) {
    step(server, model, [](int microbatch, Ring& ring, StepEngine& engine) {
      EXPECT_THAT(refusal<RemoteError>([&] { ring->fussy(-input_of(0)); }),
                  HasSubstr("x is negative"));
      train(microbatch, ring, engine);
    });
    collect_gradients(server, model, 2);
  });
  expect_gradients_of_libtorch(1);
}

TEST_F(ModuleServerTest, AnExceptionOfTheBodyIsItsOwnOnPpRankZero) {
  std::vector<std::string> texts(2);
  on_ranks(2, [&](ModuleServer& server, Ring& model) {
    const auto failing = [&] {
      step(server, model, [](int, Ring&, StepEngine&) { throw UsageError("of the body"); });
    };
    auto& text = texts[server.rank().index()];
    text = server.rank().value() == 0 ? refusal(failing) : refusal<RemoteError>(failing);
  });
  EXPECT_EQ(texts[0], "of the body");
  EXPECT_THAT(texts[1], AllOf(HasSubstr("of the body"), HasSubstr("module <body>")));
}

TEST_F(ModuleServerTest, OtherMicrobatchesAreUnwoundWhenOneFails) {
  int unwound = 0;
  on_ranks(2, [&](ModuleServer& server, Ring& model) {
    const auto text = refusal<RemoteError>([&] {
      step(
          server, model,
          [&](int microbatch, Ring& ring, StepEngine& engine) {
            if (microbatch == 3) {
              LocalServers::sleep(base::kSecond);
              ring(-input_of(0));
            }
            try {
              train(microbatch, ring, engine);  // waits for the forward of the last
            } catch (const StepAborted&) {
              ++unwound;
              throw;
            }
          },
          4);
    });
    EXPECT_THAT(text, HasSubstr("microbatch 3: "));
  });
  EXPECT_EQ(unwound, 3);
}

/// What ranks 1 and 2 ask each other may arrive when rank 0 has ended that step, and the next runs.
TEST_F(ModuleServerTest, WhatIsOnItsWayWhenAStepFailsIsNotOfTheNext) {
  schedule_ = schedule::make_interleaved(2);
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    gradients_.clear();
    const Body failing = [&](int microbatch, Ring& ring, StepEngine& engine) {
      if (microbatch == 0) return train(microbatch, ring, engine);
      LocalServers::sleep(static_cast<base::Nanoseconds>(seed % 20) * 50);
      throw UsageError("of the body");
    };
    on_ranks(
        3,
        [&](ModuleServer& server, Ring& model) {
          static_cast<void>(refusal<std::exception>([&] { step(server, model, failing, 2); }));
          model->zero_grad();
          step(server, model, train);
          collect_gradients(server, model, 3);
        },
        seed);
    expect_gradients_of_libtorch(1);
  }
}

// ---- ranks that disagree or leave --------------------------------------------------------------

TEST_F(ModuleServerTest, FactsThatDifferEndTheStepWithTheirExplanation) {
  on_ranks(2, [&](ModuleServer& server, Ring& model) {
    const auto run = [&](const std::string& facts) {
      StepTask task;
      task.schedule = schedule_.get();
      if (server.rank().value() == 0) task.body = [](int) {};
      task.weights = {1.0};
      task.facts = facts;
      task.explain_difference = [](GlobalRank other, const std::string& theirs) {
        return "rank " + std::to_string(other.value()) + " has " + theirs;
      };
      server.run_step(task);
    };
    run("equal");
    const bool first = server.rank().value() == 0;
    const auto step = [&] { run(first ? "ours" : "theirs"); };
    const auto text = first ? refusal<UsageError>(step) : refusal<RemoteError>(step);
    EXPECT_THAT(text, HasSubstr("rank 1 has theirs"));
    run("equal");
    static_cast<void>(model);
  });
}

TEST_F(ModuleServerTest, MoreMicrobatchesThanTheOwnerHasIsAnError) {
  std::vector<std::string> texts(2);
  on_ranks(2, [&](ModuleServer& server, Ring& model) {
    const bool first = server.rank().value() == 0;
    const auto failing = [&] { step(server, model, train, first ? 2 : 1); };
    texts[server.rank().index()] = first ? refusal<RemoteError>(failing) : refusal(failing);
  });
  EXPECT_THAT(texts, Each(HasSubstr("rank 0 runs microbatch 1, but this step has 1 microbatches")));
}

/// The request lies there before the owner begins the step.
TEST_F(ModuleServerTest, SoItIsWhereTheOwnerIsLate) {
  std::vector<std::string> texts(2);
  on_ranks(2, [&](ModuleServer& server, Ring& model) {
    const bool first = server.rank().value() == 0;
    if (!first) LocalServers::sleep(base::kSecond);
    const auto failing = [&] { step(server, model, train, first ? 2 : 1); };
    texts[server.rank().index()] = first ? refusal<RemoteError>(failing) : refusal(failing);
    model->zero_grad();
    step(server, model, train);
    collect_gradients(server, model, 2);
  });
  EXPECT_THAT(texts, Each(HasSubstr("rank 0 runs microbatch 1, but this step has 1 microbatches")));
  expect_gradients_of_libtorch(1);
}

TEST_F(ModuleServerTest, AModuleOfAnotherRankIsNotCalledOutsideOfSteps) {
  on_ranks(2, [&](ModuleServer& server, Ring& model) {
    const bool first = server.rank().value() == 0;
    EXPECT_THAT(refusal([&] { model->fussy(input_of(0)); }),
                StartsWith(first ? "rank 0: module 'fussy' lives on rank 1" : "accepted"));
    step(server, model, train);
  });
}

TEST_F(ModuleServerTest, AStepInsideAStepIsAnError) {
  on_ranks(2, [&](ModuleServer& server, Ring& model) {
    step(server, model, [&](int, Ring&, StepEngine&) {
      EXPECT_THAT(refusal([&] { step(server, model, train); }),
                  HasSubstr("a step was started inside a step"));
    });
  });
}

TEST_F(ModuleServerTest, ARankThatLeftEndsTheStepsOfTheOthers) {
  on_ranks(3, [&](ModuleServer& server, Ring& model) {
    step(server, model, train);
    if (server.rank().value() == 2) return server.leave_job();
    EXPECT_THAT(refusal<PeerLostError>([&] { step(server, model, train); }),
                HasSubstr("rank 2 left after step 1"));
  });
}

TEST_F(ModuleServerTest, AbandonEndsTheStepWithItsReason) {
  on_ranks(2, [&](ModuleServer& server, Ring& model) {
    const bool first = server.rank().value() == 0;
    const auto failing = [&] {
      step(server, model, [&](int, Ring& ring, StepEngine& engine) {
        server.abandon("the cable is out");
        train(0, ring, engine);
      });
    };
    const auto text = first ? refusal<PeerLostError>(failing) : refusal<RemoteError>(failing);
    EXPECT_THAT(text, HasSubstr("the cable is out"));
  });
}

}  // namespace module_server_failure_test
}  // namespace smp::server::test
