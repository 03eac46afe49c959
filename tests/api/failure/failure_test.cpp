// Exceptions at every kind of place: they end the step on all ranks, and the next step works.
#include <gmock/gmock.h>
#include <torch/csrc/autograd/autograd.h>

#include <array>

#include "api/failure/fault_net.h"
#include "api/rank/rank.h"
#include "base/log.h"

namespace smp {
namespace failure_test {

using fault::Manner;
using fault::Place;
using fault::Script;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr int kRanks = 4;
constexpr int kMicrobatches = 4;
constexpr int kSeeds = 6;

// How a step ended on one rank.
struct Outcome {
  enum Kind { kSucceeded, kRemoteError, kUsageError, kTorchError, kStandardError, kNotAnException };
  Kind kind = kSucceeded;
  std::string text;
  int origin = -1;  // of a RemoteError
};

Outcome outcome_of(const std::function<void()>& run) {
  try {
    run();
    return {};
  } catch (const RemoteError& error) {
    return {Outcome::kRemoteError, error.what(), error.rank()};
  } catch (const UsageError& error) {
    return {Outcome::kUsageError, error.what()};
  } catch (const c10::Error& error) {
    return {Outcome::kTorchError, error.what()};
  } catch (const std::exception& error) {
    return {Outcome::kStandardError, error.what()};
  } catch (int number) {
    return {Outcome::kNotAnException, std::to_string(number)};
  }
}

at::Tensor batch() { return torch::linspace(-1, 1, 32, torch::kDouble).reshape({8, 4}); }
at::Tensor loss_of(const at::Tensor& y) { return (y - 0.5).square().mean(); }

struct Numbers {
  double loss = 0;
  std::map<std::string, at::Tensor> gradients;
};

// One process, LibTorch's own engine, the same microbatches.
Numbers in_one_process() {
  auto net = fault::make_net();
  Numbers numbers;
  for (const auto& slice : batch().chunk(kMicrobatches)) {
    const auto loss = loss_of(net(slice)) / kMicrobatches;
    loss.backward();
    numbers.loss += loss.item<double>();
  }
  for (const auto& item : net->named_parameters()) {
    numbers.gradients[item.key()] = item.value().grad();
  }
  return numbers;
}

void add_hook(at::Tensor& parameter, Place place) {
  parameter.register_hook([place](const at::Tensor&) {
    if (fault::script.place == place) fault::script.raise();
  });
}

// One rank of the training that the tests disturb.
class Training {
 public:
  Training() : net_(fault::make_net()), model_(net_) {
    model_.set_partition("first", 0);
    model_.set_partition("outer", 1);
    model_.set_partition("outer.inner", 2);
    model_.set_partition("last", 3);
    add_hook(net_->first->weight, Place::kFirstHook);
    add_hook(net_->last->weight, Place::kLastHook);
  }

  double step() {
    model_.zero_grad();
    return step_(batch()).reduce_mean().item<double>();
  }

  void expect_equal_to(const Numbers& expected, double loss) const {
    EXPECT_NEAR(loss, expected.loss, 1e-12);
    for (const auto& [name, parameter] : model_.local_named_parameters()) {
      const auto& gradient = expected.gradients.at(name);
      ASSERT_TRUE(parameter.grad().defined()) << name;
      EXPECT_TRUE(at::allclose(parameter.grad(), gradient, 1e-12, 1e-14)) << name;
    }
  }

 private:
  at::Tensor body(const at::Tensor& x) {
    fault::fail_in_bad_microbatch(Place::kBody);
    const auto loss = loss_of(model_(x));
    model_.backward(loss);
    fault::fail_in_bad_microbatch(Place::kBodyAfterBackward);
    return loss;
  }

  fault::Net net_;
  DistributedModel<fault::Net> model_;
  Step<std::function<at::Tensor(at::Tensor)>> step_ =
      smp::step(std::function<at::Tensor(at::Tensor)>([this](at::Tensor x) { return body(x); }));
};

using Outcomes = std::array<Outcome, kRanks>;

void expect_nothing_left(std::size_t given_up) {
  const auto& server = Rank::current().server().core();
  EXPECT_EQ(server.step, nullptr);
  EXPECT_EQ(server.counters.records_left, 0u);
  EXPECT_EQ(server.workers.busy(), 0u);
  EXPECT_EQ(server.workers.given_up(), given_up);
  EXPECT_EQ(server.accumulator.waiting().bytes(), 0u);
}

// A step that works, one as `script` says, and one that must work again.
Outcomes disturb(const Script& script, std::uint64_t seed, std::array<int, kRanks> given_up = {}) {
  static const Numbers expected = in_one_process();
  Outcomes outcomes;
  const auto set_script = [](const Script& next) {
    barrier();
    if (rank() == 0) fault::script = next;
  };
  const auto rank_main = [&] {
    Training training;
    training.expect_equal_to(expected, training.step());
    set_script(script);
    outcomes[rank()] = outcome_of([&] { training.step(); });
    set_script({});
    training.expect_equal_to(expected, training.step());
    barrier();
    expect_nothing_left(given_up[rank()]);
  };
  Config config;
  config.microbatches = kMicrobatches;
  config.promised_outputs = false;  // the modules handle exceptions where they call
  run_local(kRanks, rank_main, config, {.seed = seed});
  return outcomes;
}

// Every rank hears of it: `origin` by the error itself, the others as RemoteError.
void expect_remote_errors(const Outcomes& outcomes, int first, int origin,
                          const testing::Matcher<std::string>& text) {
  for (int rank = first; rank < kRanks; ++rank) {
    EXPECT_EQ(outcomes[rank].kind, Outcome::kRemoteError) << "rank " << rank;
    EXPECT_EQ(outcomes[rank].origin, origin) << "rank " << rank;
    EXPECT_THAT(outcomes[rank].text, text) << "rank " << rank;
  }
}

class Failure : public testing::TestWithParam<std::uint64_t> {
 protected:
  void SetUp() override {
    fault::script = {};
    fault::seen = {};
    fault::Alive::count = 0;
  }
  void TearDown() override { fault::script = {}; }
  Outcomes disturbed(Place place, Manner manner = Manner::kPlain) {
    return disturb({place, manner}, GetParam());
  }
};
INSTANTIATE_TEST_SUITE_P(Seeds, Failure, testing::Range<std::uint64_t>(0, kSeeds));

TEST_P(Failure, OfTheBodyKeepsItsTypeOnRankZero) {
  for (const auto place : {Place::kBody, Place::kBodyAfterBackward}) {
    const auto outcomes = disturbed(place);
    EXPECT_EQ(outcomes[0].kind, Outcome::kStandardError);
    EXPECT_EQ(outcomes[0].text, "kaboom");
    expect_remote_errors(
        outcomes, 1, 0, AllOf(HasSubstr("rank 0"), HasSubstr("microbatch 1"), HasSubstr("kaboom")));
    EXPECT_EQ(fault::Alive::count, 0);
  }
}

TEST_P(Failure, OfLibTorchTravelsWithoutItsBacktrace) {
  Script script{Place::kBody};
  script.raise = [] { torch::ones({2, 3}).matmul(torch::ones({2, 3})); };
  auto outcomes = disturb(script, GetParam());
  EXPECT_EQ(outcomes[0].kind, Outcome::kTorchError);
  const auto text = AllOf(HasSubstr("2x3"), Not(HasSubstr("frame #")));
  expect_remote_errors(outcomes, 1, 0, text);
  script.place = Place::kNestedModule;
  outcomes = disturb(script, GetParam());
  expect_remote_errors(outcomes, 0, 2, text);
}

TEST_P(Failure, ThatIsNoExceptionTravelsToo) {
  Script script{Place::kBody};
  script.raise = [] { throw 42; };
  auto outcomes = disturb(script, GetParam());
  EXPECT_EQ(outcomes[0].kind, Outcome::kNotAnException);
  EXPECT_EQ(outcomes[0].text, "42");
  expect_remote_errors(outcomes, 1, 0, HasSubstr("not a std::exception"));
  for (const auto place : {Place::kModule, Place::kBackward}) {
    script.place = place;
    outcomes = disturb(script, GetParam());
    expect_remote_errors(outcomes, 0, place == Place::kModule ? 1 : 2,
                         HasSubstr("not a std::exception"));
  }
}

TEST_P(Failure, OfAModuleNamesRankModuleAndMicrobatch) {
  expect_remote_errors(disturbed(Place::kModule), 0, 1,
                       HasSubstr("rank 1, module outer (forward), microbatch 1: kaboom"));
}

TEST_P(Failure, OfANestedModuleComesThroughItsCaller) {
  expect_remote_errors(disturbed(Place::kNestedModule), 0, 2,
                       HasSubstr("rank 2, module outer.inner (forward), microbatch 1: kaboom"));
  EXPECT_EQ(fault::Alive::count, 0);
}

TEST_P(Failure, OfBackwardNamesTheModule) {
  expect_remote_errors(disturbed(Place::kBackward), 0, 2,
                       HasSubstr("rank 2, module outer.inner (backward), microbatch 1: kaboom"));
}

TEST_P(Failure, OfAHookOnAnotherRanksParameterEndsTheStepEverywhere) {
  auto outcomes = disturbed(Place::kLastHook);
  EXPECT_THAT(outcomes[3].text, HasSubstr("kaboom"));
  outcomes[3] = outcomes[0];
  expect_remote_errors(outcomes, 0, 3, AllOf(HasSubstr("rank 3"), HasSubstr("kaboom")));
}

TEST_P(Failure, OfAHookOnRankZeroEndsTheStepEverywhere) {
  const auto outcomes = disturbed(Place::kFirstHook);
  EXPECT_EQ(outcomes[0].kind, Outcome::kStandardError);
  EXPECT_EQ(outcomes[0].text, "kaboom");
  expect_remote_errors(outcomes, 1, 0, AllOf(HasSubstr("rank 0"), HasSubstr("kaboom")));
}

TEST_P(Failure, ThatTheCallerHandlesLetsTheStepGoOn) {
  for (const auto& outcome : disturbed(Place::kNestedModule, Manner::kHandles)) {
    EXPECT_EQ(outcome.kind, Outcome::kSucceeded) << outcome.text;
  }
  EXPECT_EQ(fault::seen.handled, 1);
}

TEST_P(Failure, UnwindsOtherMicrobatchesUnseenByHandlersOfStdExceptions) {
  expect_remote_errors(disturbed(Place::kNestedModule, Manner::kRethrowsStdExceptions), 0, 2,
                       HasSubstr("kaboom"));
  EXPECT_EQ(fault::seen.std_exceptions, 1);
  EXPECT_EQ(fault::Alive::count, 0);
}

TEST_P(Failure, SurvivesModulesThatSwallowTheAbort) {
  expect_remote_errors(disturbed(Place::kNestedModule, Manner::kSwallowsThrice), 0, 2,
                       HasSubstr("kaboom"));
  EXPECT_EQ(fault::seen.swallowed % 3, 0);
  EXPECT_GT(fault::seen.swallowed, 0);
  EXPECT_EQ(fault::Alive::count, 0);
}

TEST_P(Failure, LetsDestructorsCallRemoteModules) {
  expect_remote_errors(disturbed(Place::kNestedModule, Manner::kCallsInDestructor), 0, 2,
                       HasSubstr("kaboom"));
  EXPECT_GT(fault::seen.empty_results, 0);
  EXPECT_EQ(fault::Alive::count, 0);
}

TEST_P(Failure, OfAModuleCalledOnAThreadNamesIt) {
  expect_remote_errors(disturbed(Place::kNowhere, Manner::kCallsOnAThread), 0, 1,
                       AllOf(HasSubstr("rank 1, module outer "), HasSubstr("'outer.inner'"),
                             HasSubstr("std::thread")));
}

TEST(FailureForEver, GivesUpAFiberThatSwallowsTheAbortAgainAndAgain) {
  const base::LogCapture log;
  const auto outcomes =
      disturb({Place::kNestedModule, Manner::kSwallowsForever}, 0, {0, kMicrobatches - 1, 0, 0});
  expect_remote_errors(outcomes, 0, 2, HasSubstr("kaboom"));
  EXPECT_THAT(log.text(), AllOf(HasSubstr("rank 1, module outer (forward)"),
                                HasSubstr("StepAborted"), HasSubstr("given up")));
}

TEST(FailureDeathTest, NamesTheModuleThatCannotUnwind) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(disturb({Place::kNestedModule, Manner::kIsNoexcept}, 0), testing::ExitedWithCode(1),
              "rank 1, module outer \\(forward\\), microbatch [023].*noexcept");
}

}  // namespace failure_test
}  // namespace smp
