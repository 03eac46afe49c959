// Steps of two and three ranks, without a session: what they compute equals LibTorch, what they
// send follows formulas, and a failure ends one step on every rank.
#include "server/module_server.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/variable.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "module/routed_models.h"
#include "server/local_servers.h"
#include "support/refusal.h"

namespace smp::server {
namespace {

using test::LocalServers;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// ---- models ------------------------------------------------------------------------------------

/// Refuses negative numbers, forward or backward.
struct FussyImpl : smp::test::WeightedImpl {
  using WeightedImpl::WeightedImpl;
  at::Tensor forward(const at::Tensor& x) {
    if (x.lt(0).any().item<bool>()) throw std::invalid_argument("x is negative");
    auto y = x * weight;
    if (!y.requires_grad()) return y;
    y.register_hook([](const at::Tensor& gradient) {
      if (gradient.lt(0).any().item<bool>()) throw std::domain_error("the gradient is negative");
    });
    return y;
  }
};
SMP_MODULE(Fussy);

/// Ranks call each other in a ring: middle, of another rank than this, calls back.
struct InnerImpl : torch::nn::Module {
  smp::test::Scale scale{nullptr};
  InnerImpl() { scale = register_module("scale", smp::test::Scale(3)); }
  at::Tensor forward(const at::Tensor& x) { return scale(x).square(); }
};
SMP_MODULE(Inner);
struct RingImpl : torch::nn::Module {
  Inner inner{nullptr};
  smp::test::Scale last{nullptr};
  Fussy fussy{nullptr};
  RingImpl() {
    inner = register_module("inner", Inner());
    last = register_module("last", smp::test::Scale(5));
    fussy = register_module("fussy", Fussy(2));
  }
  at::Tensor forward(const at::Tensor& x) { return last(inner(x) + fussy(x)); }
};
SMP_MODULE(Ring);

// ---- steps -------------------------------------------------------------------------------------

at::Tensor input_of(int microbatch) { return at::arange(1, 3, at::kFloat) * (microbatch + 1); }

/// The same microbatches in LibTorch, one after the other.
std::vector<at::Tensor> gradients_of_libtorch(int microbatches) {
  Ring model;
  for (int i = 0; i < microbatches; ++i) model(input_of(i)).sum().backward();
  std::vector<at::Tensor> gradients;
  for (const auto& parameter : model->parameters()) gradients.push_back(parameter.grad());
  return gradients;
}

class ModuleServerTest : public ::testing::Test {
 protected:
  using Body = std::function<void(int microbatch, Ring& model, StepEngine& engine)>;

  /// "inner" is on rank 1; its own "scale" on the last rank; "fussy" too.
  std::map<std::string, int> owners_of(int ranks) const {
    return {{"inner", 1}, {"inner.scale", ranks == 2 ? 0 : 2}, {"fussy", ranks - 1}};
  }
  static void train(int microbatch, Ring& model, StepEngine& engine) {
    engine.backward({model(input_of(microbatch)).sum()}, {}, /*keep_graph=*/false);
  }
  void step(ModuleServer& server, Ring& model, const Body& body, int microbatches = 1) {
    StepTask task;
    task.microbatches = microbatches;
    task.schedule = schedule_.get();
    task.weights.assign(static_cast<std::size_t>(microbatches), 1);
    task.outputs = outputs_;
    task.body = [&](int microbatch) { body(microbatch, model, server.engine()); };
    server.run_step(task);
  }
  /// `ranks` of them run `rank_main` with a model whose modules are placed.
  void on_ranks(int ranks, const std::function<void(ModuleServer&, Ring&)>& rank_main,
                std::uint64_t seed = 1) {
    servers_ = std::make_unique<LocalServers>(ranks, seed);
    servers_->run([&](ModuleServer& server) {
      Ring model;
      test::place_modules(server, *model, owners_of(ranks));
      rank_main(server, model);
    });
  }
  /// The gradient of every parameter from the rank that owns it; no other rank has one.
  void collect_gradients(ModuleServer& server, Ring& model, int ranks) {
    const auto owners = owners_of(ranks);
    std::size_t number = 0;
    for (const auto& item : model->named_parameters()) {
      const auto path = item.key().substr(0, item.key().rfind('.'));
      const auto owner = owners.find(path);
      const bool own = server.rank() == PpRank(owner == owners.end() ? 0 : owner->second);
      gradients_.resize(std::max(gradients_.size(), ++number));
      if (own) gradients_[number - 1] = item.value().grad();
      EXPECT_EQ(item.value().grad().defined(), own) << item.key();
    }
  }
  void expect_gradients_of_libtorch(int microbatches) {
    const auto expected = gradients_of_libtorch(microbatches);
    ASSERT_EQ(gradients_.size(), expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(at::equal(gradients_[i], expected[i])) << i << ": " << gradients_[i];
    }
  }
  /// A step in which `body` fails, and one that is fine.
  std::vector<std::string> failures_of(int ranks, const Body& body) {
    std::vector<std::string> texts(static_cast<std::size_t>(ranks));
    gradients_.clear();
    on_ranks(ranks, [&](ModuleServer& server, Ring& model) {
      texts[server.rank().index()] = refusal<RemoteError>([&] { step(server, model, body); });
      model->zero_grad();
      step(server, model, train);
      collect_gradients(server, model, ranks);
      EXPECT_EQ(server.core().workers.busy(), 0u);
    });
    expect_gradients_of_libtorch(1);
    return texts;
  }

  std::unique_ptr<schedule::Schedule> schedule_ = schedule::make_simple();
  std::vector<Packet>* outputs_ = nullptr;
  std::unique_ptr<LocalServers> servers_;
  std::vector<at::Tensor> gradients_;
};

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

// ---- failures ----------------------------------------------------------------------------------

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

}  // namespace
}  // namespace smp::server
