// Where a call stands in the program: its keys are those of one process, whether it runs here or on
// another rank, alone or in a joint request.
#include "server/running/execution_scope.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "module/routed_models.h"

namespace smp::server {
namespace {

/// A rank's modules: all of them draw random numbers, but for the last.
class ExecutionScopeTest : public ::testing::Test {
 protected:
  struct Rank {
    Rank(int number, const base::Clock& clock) : services(GlobalRank(number), clock) {
      const char* paths[] = {"encoder", "encoder.block.0", "decoder"};
      std::vector<RoutedBase*> routed;
      for (std::size_t i = 0; i < modules.size(); ++i) {
        auto* module = dynamic_cast<RoutedBase*>(modules[i].get());
        module->smp_place = {-1, PpRank(0), paths[i]};
        routed.push_back(module);
      }
      services.modules.attach_model(routed);
    }
    std::vector<smp::test::Scale> modules{smp::test::Scale(1), smp::test::Scale(2),
                                          smp::test::Scale(3)};
    ScopeServices services;
  };
  static ExecutionIdentity of(int microbatch, ModuleId module = kBody) {
    return {module, microbatch, schedule::Phase::kForward, false, {}};
  }
  /// What one call drew, and where it stands.
  struct Seen {
    std::string key;
    double random;
    friend bool operator==(const Seen&, const Seen&) = default;
  };

  void see(const CallScope& call) {
    seen_.push_back({call.key().text(), at::rand({1}, at::kDouble).item<double>()});
  }
  /// A call of module `number` that runs here and does `inside`.
  void here(
      int number, const std::function<void()>& inside = [] {}) {
    const CallScope call(*ExecutionScope::current(), ModuleId{number});
    see(call);
    inside();
  }
  /// The same, on another rank.
  void away(
      int number, const std::function<void()>& inside = [] {}) {
    const auto position = ExecutionScope::current()->next_call(1);
    in_request(position, [&] { here(number, inside); });
  }
  /// Runs `inside` where the other rank answers a request.
  void in_request(const CallPosition& position, const std::function<void()>& inside) {
    ExecutionScope request(other_.services, of(3, ModuleId{0}), position, kKey);
    inside();
  }
  /// What a body sees.
  std::vector<Seen> seen_in(const std::function<void()>& body, std::uint64_t key = kKey) {
    seen_.clear();
    const ExecutionScope scope(rank_.services, of(3), {}, key);
    body();
    return seen_;
  }

  static constexpr std::uint64_t kKey = 17;
  fiber::Scheduler& scheduler_ = fiber::Scheduler::install();
  base::SteadyClock clock_;
  Rank rank_{0, clock_};
  Rank other_{4, clock_};
  std::vector<Seen> seen_;
};

std::vector<std::string> keys_of(const auto& seen) {
  std::vector<std::string> keys;
  for (const auto& one : seen) keys.push_back(one.key);
  return keys;
}

TEST_F(ExecutionScopeTest, NestedCallsAreNumberedWithinTheirCallers) {
  const auto seen = seen_in([&] {
    here(0, [&] {
      here(1);
      here(1, [&] { here(2); });
    });
    here(2);
  });
  EXPECT_EQ(keys_of(seen),
            (std::vector<std::string>{"body.0", "body.0.0", "body.0.1", "body.0.1.0", "body.1"}));
}

TEST_F(ExecutionScopeTest, ACallHasTheSameKeysWhereverItRuns) {
  using Inside = std::function<void()>;
  using Call = std::function<void(int, const Inside&)>;
  const auto run = [this](const Call& outer, const Call& inner) {
    return seen_in([&] {
      here(2);
      outer(0, [&] {
        here(1);
        inner(1, [&] { here(2); });
        inner(1, [] {});
        here(2);
      });
      here(1);
    });
  };
  const Call run_here = [this](int module, const Inside& inside) { here(module, inside); };
  const Call run_away = [this](int module, const Inside& inside) { away(module, inside); };
  const auto expected = run(run_here, run_here);
  EXPECT_EQ(expected.size(), 8u);
  EXPECT_EQ(run(run_away, run_here), expected);
  EXPECT_EQ(run(run_here, run_away), expected);
  EXPECT_EQ(run(run_away, run_away), expected) << "a request that makes a request";
}

TEST_F(ExecutionScopeTest, AJointCallCountsAsTheCallsThatItMakes) {
  const auto expected = seen_in([&] {
    here(0);
    here(1, [&] { here(2); });
    here(1);
    here(2);
  });
  const auto joint = seen_in([&] {
    here(0);
    const auto position = ExecutionScope::current()->next_call(2);
    in_request(position, [&] {
      here(1, [&] { here(2); });
      here(1);
    });
    here(2);
  });
  EXPECT_EQ(joint, expected);
}

TEST_F(ExecutionScopeTest, RandomNumbersDependOnKeyModuleAndPlace) {
  const auto draw = [this](int module, std::uint64_t key, int calls_before) {
    return seen_in(
               [&] {
                 static_cast<void>(ExecutionScope::current()->next_call(calls_before));
                 here(module);
               },
               key)
        .front()
        .random;
  };
  const auto usual = draw(0, 1, 0);
  EXPECT_EQ(draw(0, 1, 0), usual);
  EXPECT_NE(draw(1, 1, 0), usual);
  EXPECT_NE(draw(0, 2, 0), usual);
  EXPECT_NE(draw(0, 1, 1), usual);
}

TEST_F(ExecutionScopeTest, AfterACallItsCallersRandomNumbersGoOn) {
  const base::RandomScope random(random_key_of_body(kKey));
  const auto draw = [] { return at::rand({1}, at::kDouble).item<double>(); };
  const auto first = draw(), second = draw();
  const base::RandomScope again(random_key_of_body(kKey));
  seen_in([&] {
    EXPECT_EQ(draw(), first);
    here(0, [&] { here(1); });
    EXPECT_EQ(draw(), second);
  });
}

TEST_F(ExecutionScopeTest, ScopesOfAFiberNestAndOthersSeeNone) {
  EXPECT_EQ(ExecutionScope::current(), nullptr);
  {
    const ExecutionScope outer(rank_.services, of(1), {}, kKey);
    {
      const ExecutionScope inner(rank_.services, of(2), {}, kKey);
      EXPECT_EQ(ExecutionScope::current(), &inner);
    }
    EXPECT_EQ(ExecutionScope::current(), &outer);
    fiber::Event ran;
    scheduler_.spawn(
        [&] {
          EXPECT_EQ(ExecutionScope::current(), nullptr);
          ran.signal();
        },
        {}, 1 << 20);
    ran.wait({"the test", "", -1, -1});
  }
  EXPECT_EQ(ExecutionScope::current(), nullptr);
  EXPECT_EQ(fiber::current_fiber()->activity, nullptr);
}

/// A scope leaves the thread, and another one has it with what the step began with.
TEST_F(ExecutionScopeTest, WithOwnCodeAloneItsSwitchesAreLookedForOnce) {
  rank_.services.settings.attach(*rank_.modules[0]);
  rank_.services.settings.begin_step();
  auto& module = *rank_.modules[0];
  ExecutionScope one(rank_.services, of(1), {}, kKey);
  const auto other_runs = [&] {
    one.on_switch(false);
    rank_.services.settings.apply(rank_.services.settings.base());
    const bool trains = module.is_training();
    one.on_switch(true);
    return trains;
  };
  module.eval();
  {
    const OwnCodeOnly own(&one.settings());
    EXPECT_TRUE(other_runs()) << "switched before";
    EXPECT_FALSE(module.is_training());
    const auto view = one.settings().view();
    EXPECT_TRUE(other_runs());
    EXPECT_EQ(one.settings().view(), view);
    EXPECT_FALSE(module.is_training());
    one.settings().note_user_code();
    module.train();
    EXPECT_TRUE(other_runs());
    EXPECT_TRUE(module.is_training()) << "by a hook, say";
    module.eval();
    EXPECT_FALSE(other_runs()) << "nobody looks: it cannot have happened";
  }
  module.train();
  module.eval();
  EXPECT_TRUE(other_runs()) << "user code again";
  const OwnCodeOnly nobody(nullptr);
}

TEST_F(ExecutionScopeTest, SaysWhoAndWhatItIs) {
  const auto text_of = [](const ExecutionScope& scope) {
    char text[256];
    scope.describe(text, sizeof text);
    return std::string(text);
  };
  ExecutionScope scope(other_.services, of(3), {}, kKey);
  EXPECT_EQ(text_of(scope), "rank 4, module <body> (forward), microbatch 3");
  scope.set_phase(schedule::Phase::kBackward);
  EXPECT_EQ(text_of(scope), "rank 4, module <body> (backward), microbatch 3");
  const ExecutionScope inner(other_.services, of(2, ModuleId{1}), {}, kKey);
  EXPECT_EQ(text_of(inner), "rank 4, module encoder.block.0 (forward), microbatch 2");
  char few[10];
  scope.describe(few, sizeof few);
  EXPECT_STREQ(few, "rank 4, m");
}

TEST_F(ExecutionScopeTest, CountsAbortedCalls) {
  ExecutionScope scope(rank_.services, of(3), {}, kKey);
  EXPECT_EQ(scope.count_aborted_call(), 1);
  EXPECT_EQ(scope.count_aborted_call(), 2);
  EXPECT_FALSE(scope.identity().after_first_backward);
  scope.set_after_first_backward();
  EXPECT_TRUE(scope.identity().after_first_backward);
}

}  // namespace
}  // namespace smp::server
