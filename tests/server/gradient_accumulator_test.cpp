// The order of sums: within a microbatch by descending order key, then microbatch by microbatch,
// whatever the order of arrival (docs/design.md, Accumulation).
#include "server/gradient_accumulator.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "smp/error.h"

namespace smp::server {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

/// A parameter whose hook writes down what is applied.
struct Watched {
  explicit Watched(at::ScalarType type = at::kFloat)
      : tensor(at::zeros({}, type).requires_grad_()),
        edge(torch::autograd::impl::gradient_edge(tensor)) {
    tensor.register_hook([this](const at::Tensor& gradient) {
      if (gradient.defined()) applied.push_back(gradient.item<float>());
      if (on_hook) on_hook();
    });
  }
  Watched(const Watched&) = delete;
  Watched& operator=(const Watched&) = delete;
  torch::autograd::AccumulateGrad& leaf() const {
    return static_cast<torch::autograd::AccumulateGrad&>(*edge.function);
  }
  float grad() const { return tensor.grad().item<float>(); }

  at::Tensor tensor;
  torch::autograd::Edge edge;
  std::vector<float> applied;
  std::function<void()> on_hook;
};

OrderKey call_path(std::initializer_list<std::uint32_t> ordinals) {
  OrderKey key;
  for (const auto ordinal : ordinals) key.append(ordinal);
  return key;
}

class GradientAccumulatorTest : public testing::Test {
 protected:
  void SetUp() override {
    numbers_.place(weight_.tensor);  // the other is unknown to it
    accumulator_.begin(3);
  }
  void TearDown() override { accumulator_.drop(); }

  /// An execution whose backward reaches the weight.
  ExecutionId record(int microbatch, OrderKey order = {}) {
    return record_reaching({&weight_}, microbatch, std::move(order), false);
  }
  /// One that the body calls after its first backward.
  ExecutionId record_after(int microbatch, OrderKey order) {
    return record_reaching({&weight_}, microbatch, std::move(order), true);
  }
  ExecutionId record_reaching(std::initializer_list<const Watched*> reached, int microbatch,
                              OrderKey order, bool after = false) {
    const auto id = accumulator_.open(microbatch, std::move(order), after);
    edge_list roots;
    for (const auto* one : reached) {
      roots.push_back(torch::autograd::impl::gradient_edge(one->tensor * 2));
    }
    accumulator_.recorded(id, std::move(roots));
    return id;
  }
  void put(ExecutionId id, float gradient, bool after = false) {
    put(id, weight_, gradient, after);
  }
  void put(ExecutionId id, const Watched& parameter, float gradient, bool after = false) {
    const at::NoGradGuard no_grad;
    GradientAccumulator::Pass(accumulator_, id, after)
        .put(parameter.leaf(), {at::full({}, gradient, parameter.tensor.options())});
  }
  void put_and_close(ExecutionId id, float gradient) {
    put(id, gradient);
    accumulator_.close(id);
  }

  Watched weight_, other_;
  ParameterNumbers numbers_;
  bool refuse_ = false;
  std::map<const void*, int> guarded_;
  GradientAccumulator accumulator_{numbers_, [this](const at::Tensor& parameter) {
                                     if (refuse_) throw UsageError("foreign");
                                     ++guarded_[parameter.unsafeGetTensorImpl()];
                                   }};
};

// ---- microbatches ------------------------------------------------------------------------------

TEST_F(GradientAccumulatorTest, TakesMicrobatchesInOrder) {
  std::vector<ExecutionId> ids;
  for (int microbatch = 0; microbatch < 3; ++microbatch) {
    ids.push_back(record(microbatch));
    accumulator_.mark_forward_done(microbatch);
  }
  put_and_close(ids[2], 4);
  put_and_close(ids[1], 2);
  EXPECT_THAT(weight_.applied, IsEmpty());
  EXPECT_EQ(accumulator_.waiting_bytes(), 2 * sizeof(float));
  put_and_close(ids[0], 1);
  EXPECT_THAT(weight_.applied, ElementsAre(1, 2, 4));
  EXPECT_EQ(weight_.grad(), 7);
  EXPECT_EQ(accumulator_.waiting_bytes(), 0u);
  EXPECT_EQ(accumulator_.most_waiting_bytes(), 2 * sizeof(float));
}

TEST_F(GradientAccumulatorTest, WaitsForTheForwardToEnd) {
  put_and_close(record(0), 1);
  EXPECT_THAT(weight_.applied, IsEmpty());
  accumulator_.mark_forward_done(0);
  EXPECT_THAT(weight_.applied, IsEmpty());  // a mark does nothing yet
  accumulator_.settle();
  EXPECT_THAT(weight_.applied, ElementsAre(1));
}

TEST_F(GradientAccumulatorTest, WaitsForTheForwardOfLowerMicrobatches) {
  const auto second = record(1);
  accumulator_.mark_forward_done(1);
  put_and_close(second, 1);
  EXPECT_THAT(weight_.applied, IsEmpty());
  accumulator_.mark_forward_done(0);
  accumulator_.settle();
  EXPECT_THAT(weight_.applied, ElementsAre(1));
}

TEST_F(GradientAccumulatorTest, TakesAMicrobatchWhoseBodyNeverCalledBackward) {
  record(0);
  const auto second = record(1);
  accumulator_.mark_forward_done(1);
  put_and_close(second, 1);
  EXPECT_THAT(weight_.applied, IsEmpty());
  accumulator_.mark_microbatch_done(0);
  accumulator_.settle();
  EXPECT_THAT(weight_.applied, ElementsAre(1));
}

// ---- executions of one microbatch --------------------------------------------------------------

TEST_F(GradientAccumulatorTest, SumsAMicrobatchFromItsLastExecutionToItsFirst) {
  const auto first = record(0, call_path({0}));
  const auto second = record(0, call_path({1}));
  const auto third = record(0, call_path({2}));
  accumulator_.mark_forward_done(0);
  // In this order the sum is 1; in order of arrival it would be 0.
  put_and_close(first, 1);
  put_and_close(third, 1e30F);
  EXPECT_THAT(weight_.applied, IsEmpty());
  put_and_close(second, -1e30F);
  EXPECT_THAT(weight_.applied, ElementsAre(1));
}

/// Another rank ran ahead, so what is last in the program is opened first.
TEST_F(GradientAccumulatorTest, SumsInProgramOrderThoughExecutionsArriveInAnother) {
  std::vector<int> arrival{0, 1, 2};
  do {
    std::vector<ExecutionId> ids(3);
    for (const int call : arrival)
      ids[call] = record(0, call_path({static_cast<std::uint32_t>(call)}));
    accumulator_.mark_forward_done(0);
    const float gradients[] = {1, -1e30F, 1e30F};
    for (const int call : arrival) put_and_close(ids[call], gradients[call]);
    EXPECT_THAT(weight_.applied, ElementsAre(1));
    weight_.applied.clear();
    accumulator_.finish();
    accumulator_.begin(3);
  } while (std::next_permutation(arrival.begin(), arrival.end()));
}

/// body ─► 3 ─► 3.0, both on this rank, then 4: all use the weight.
TEST_F(GradientAccumulatorTest, AddsACallerAfterWhatItCalled) {
  const auto callee = record(0, call_path({3, 0}));
  const auto later = record(0, call_path({4}));
  const auto body = record(0);
  const auto caller = record(0, call_path({3}));
  accumulator_.mark_forward_done(0);
  put_and_close(body, 1);
  put_and_close(caller, 1e30F);  // meets -1e30 + 1e30, which vanish
  put_and_close(callee, 1e30F);
  put_and_close(later, -1e30F);
  EXPECT_THAT(weight_.applied, ElementsAre(1e30F));
  EXPECT_EQ(weight_.grad(), (-1e30F + 1e30F) + 1e30F + 1);
}

/// The caller waits in the middle of its backward for the callee's, while both are open.
TEST_F(GradientAccumulatorTest, TakesTheCalleesGradientDuringTheCallersPass) {
  const auto caller = record_reaching({&weight_, &other_}, 0, call_path({0}));
  const auto callee = record_reaching({&weight_, &other_}, 0, call_path({0, 0}));
  accumulator_.mark_forward_done(0);
  put(caller, other_, 1);  // in the caller's graph the other stands behind the call
  EXPECT_THAT(other_.applied, IsEmpty());
  put(callee, other_, 2);
  EXPECT_THAT(other_.applied, ElementsAre(3));  // both have given all, closed or not
  put(callee, weight_, 5);
  accumulator_.close(callee);
  EXPECT_THAT(weight_.applied, IsEmpty());
  put_and_close(caller, 6);
  EXPECT_THAT(weight_.applied, ElementsAre(11));
}

TEST_F(GradientAccumulatorTest, RefusesTwoExecutionsAtOnePlace) {
  record(0, call_path({1}));
  const auto twin = record(0, call_path({1}));
  accumulator_.mark_forward_done(0);
  EXPECT_THROW(put(twin, 1), InternalError);
}

// ---- what is waited for ------------------------------------------------------------------------

TEST_F(GradientAccumulatorTest, DoesNotWaitForExecutionsThatCannotReachTheParameter) {
  record_reaching({&other_}, 0, {});
  const auto id = record(1);
  accumulator_.mark_forward_done(0);
  accumulator_.mark_forward_done(1);
  put_and_close(id, 3);
  EXPECT_THAT(weight_.applied, ElementsAre(3));
}

TEST_F(GradientAccumulatorTest, DoesNotWaitForExecutionsThatWereReleased) {
  const auto released = record(0);
  const auto id = record(1);
  accumulator_.mark_forward_done(0);
  accumulator_.mark_forward_done(1);
  put_and_close(id, 3);
  EXPECT_THAT(weight_.applied, IsEmpty());
  accumulator_.mark_closed(released);
  accumulator_.settle();
  EXPECT_THAT(weight_.applied, ElementsAre(3));
}

TEST_F(GradientAccumulatorTest, WaitsOnlyForTheParametersThatAnExecutionReaches) {
  const auto low = record_reaching({&weight_}, 0, call_path({0}));
  const auto both = record_reaching({&weight_, &other_}, 0, call_path({1}));
  const auto high = record_reaching({&other_}, 0, call_path({2}));
  accumulator_.mark_forward_done(0);
  put(low, weight_, 1);
  put(both, other_, 2);
  EXPECT_THAT(other_.applied, IsEmpty());
  accumulator_.close(high);  // without a gradient
  EXPECT_THAT(other_.applied, ElementsAre(2));
  EXPECT_THAT(weight_.applied, IsEmpty());
  put(both, weight_, 4);
  EXPECT_THAT(weight_.applied, ElementsAre(5));
}

TEST_F(GradientAccumulatorTest, CountsAnUndefinedGradientAsGiven) {
  const auto first = record(0, call_path({0}));
  const auto second = record(0, call_path({1}));
  accumulator_.mark_forward_done(0);
  put(first, 1);
  GradientAccumulator::Pass(accumulator_, second, false).put(weight_.leaf(), {at::Tensor()});
  EXPECT_THAT(weight_.applied, ElementsAre(1));
}

TEST_F(GradientAccumulatorTest, RefusesAGraphThatComesAfterTheForward) {
  const auto first = record(0, call_path({0}));
  const auto second = accumulator_.open(0, call_path({1}), false);
  accumulator_.mark_forward_done(0);
  put(first, 1);
  EXPECT_THROW(accumulator_.recorded(second, {}), InternalError);
  EXPECT_NO_THROW(accumulator_.recorded(first, {}));
}

/// A backward inside a backward, as of a checkpoint: its leaves are in no graph that was recorded.
TEST_F(GradientAccumulatorTest, TakesWhatNobodyCouldKnowOf) {
  const auto first = record_reaching({&other_}, 0, {});
  const auto second = record(1);
  accumulator_.mark_forward_done(0);
  accumulator_.mark_forward_done(1);
  put(first, 1);
  put_and_close(second, 2);
  put(first, 4);
  put(first, 8);
  EXPECT_THAT(weight_.applied, ElementsAre(1, 2, 4, 8));
  accumulator_.finish();
  EXPECT_EQ(weight_.grad(), 15);
}

/// In reverse, their sum would be 0 instead of 1.
TEST_F(GradientAccumulatorTest, AddsWhatOneExecutionGivesAsItComes) {
  const auto first = record(0, call_path({0}));
  const auto second = record(0, call_path({1}));
  accumulator_.mark_forward_done(0);
  for (const bool after : {false, true}) {
    for (const float gradient : {1e30F, -1e30F, 1.0F}) put(first, gradient, after);
  }
  EXPECT_THAT(weight_.applied, IsEmpty());
  accumulator_.close(second);
  EXPECT_THAT(weight_.applied, ElementsAre(1));
  accumulator_.finish();
  EXPECT_THAT(weight_.applied, ElementsAre(1, 1));
}

// ---- after the first backward ------------------------------------------------------------------

TEST_F(GradientAccumulatorTest, AddsWhatFollowsTheFirstBackwardLast) {
  const auto rest = record_after(0, call_path({1}));
  put(rest, 8, true);
  const auto id = record(0, call_path({0}));
  accumulator_.mark_forward_done(0);
  put_and_close(id, 1);
  EXPECT_THAT(weight_.applied, ElementsAre(1));
  EXPECT_EQ(accumulator_.waiting_bytes(), sizeof(float));
  accumulator_.finish();
  EXPECT_THAT(weight_.applied, ElementsAre(1, 8));
}

TEST_F(GradientAccumulatorTest, AddsWhatFollowsTheFirstBackwardInOrder) {
  const auto second = record_after(1, call_path({7}));
  const auto first = record_after(0, call_path({7}));
  const auto last = record_after(0, call_path({9}));
  const auto middle = record_after(0, call_path({8}));
  put(second, 3);  // the execution says that it is after, if not the pass
  put(first, 1);
  put(last, 1e30F);
  put(middle, -1e30F);
  EXPECT_EQ(accumulator_.waiting_bytes(), 4 * sizeof(float));
  accumulator_.mark_microbatch_done(0);
  accumulator_.settle();
  EXPECT_EQ(accumulator_.waiting_bytes(), 2 * sizeof(float));  // microbatch 0 is one sum now
  EXPECT_THAT(weight_.applied, IsEmpty());
  accumulator_.finish();
  EXPECT_THAT(weight_.applied, ElementsAre(1, 3));
}

/// The graph was kept: the execution stays open, gives again, and what it gives then follows the
/// first backward.
TEST_F(GradientAccumulatorTest, TakesASecondPassOverOneGraphLast) {
  const auto first = record(0, call_path({0}));
  const auto second = record(0, call_path({1}));
  const auto next = record(1);
  accumulator_.mark_forward_done(0);
  accumulator_.mark_forward_done(1);
  put(second, 10);
  put(first, 1);
  put_and_close(next, 100);
  EXPECT_THAT(weight_.applied, ElementsAre(11, 100));  // open, but both have given
  put(first, 2, true);
  put(second, 1e30F, true);
  put(second, -1e30F, true);
  accumulator_.close(first);
  accumulator_.close(second);
  accumulator_.finish();
  EXPECT_THAT(weight_.applied, ElementsAre(11, 100, 2));
}

TEST_F(GradientAccumulatorTest, TakesWhatIsOpenedAfterTheForwardAsLate) {
  const auto id = record(0);
  accumulator_.mark_forward_done(0);
  const auto rest = accumulator_.open(0, call_path({5}), false);
  EXPECT_FALSE(accumulator_.after_first_backward(id));
  EXPECT_TRUE(accumulator_.after_first_backward(rest));
  put(rest, 8);
  put(id, 1);
  accumulator_.finish();
  EXPECT_THAT(weight_.applied, ElementsAre(1, 8));
}

// ---- guard, failure, hooks, bytes --------------------------------------------------------------

TEST_F(GradientAccumulatorTest, RefusesGradientsThatTheGuardRefuses) {
  refuse_ = true;
  EXPECT_THROW(put(record(0), 1), UsageError);
  EXPECT_THROW(put(record_after(0, call_path({1})), 1), UsageError);  // and again
  EXPECT_EQ(accumulator_.waiting_bytes(), 0u);
}

TEST_F(GradientAccumulatorTest, AsksTheGuardOnceAStep) {
  for (int step = 1; step <= 3; ++step) {
    const auto first = record_reaching({&weight_, &other_}, 0, call_path({0}));
    const auto second = record_reaching({&weight_}, 0, call_path({1}));
    accumulator_.mark_forward_done(0);
    put(second, weight_, 1);
    put(first, weight_, 1);
    put(first, other_, 1);
    EXPECT_EQ(guarded_[weight_.tensor.unsafeGetTensorImpl()], step);
    EXPECT_EQ(guarded_[other_.tensor.unsafeGetTensorImpl()], step);
    accumulator_.finish();
    accumulator_.begin(3);
  }
}

TEST_F(GradientAccumulatorTest, ForgetsAFailedStep) {
  const auto id = record(1);
  put(id, 5);
  put(record_after(1, call_path({3})), 6);
  accumulator_.mark_closed(record(2));
  accumulator_.drop();
  EXPECT_EQ(accumulator_.waiting_bytes(), 0u);
  accumulator_.mark_closed(id);  // messages of the failed step
  accumulator_.mark_forward_done(1);
  accumulator_.mark_microbatch_done(2);
  accumulator_.settle();
  accumulator_.begin(1);
  const auto next = record(0);
  accumulator_.mark_closed(id);
  accumulator_.mark_closed({});
  accumulator_.mark_forward_done(0);
  put_and_close(next, 2);
  EXPECT_THAT(weight_.applied, ElementsAre(2));
  EXPECT_EQ(weight_.grad(), 2);
  accumulator_.finish();
}

TEST_F(GradientAccumulatorTest, ForgetsAStepThatAHookFailed) {
  weight_.on_hook = [] { throw UsageError("hook"); };
  const auto first = record(0);
  const auto second = record(1);
  accumulator_.mark_forward_done(0);
  accumulator_.mark_forward_done(1);
  put(second, 2);
  EXPECT_THROW(put(first, 1), UsageError);
  accumulator_.drop();
  weight_.on_hook = nullptr;
  weight_.applied.clear();
  accumulator_.begin(2);
  const auto next = record(0);
  accumulator_.mark_forward_done(0);
  put_and_close(next, 3);
  accumulator_.finish();
  EXPECT_THAT(weight_.applied, ElementsAre(3));
  EXPECT_EQ(weight_.grad(), 3);
}

/// What another fiber gives while a hook has suspended this one.
TEST_F(GradientAccumulatorTest, KeepsTheOrderWhileAHookWaits) {
  const auto first = record(0);
  const auto second = record(1);
  accumulator_.mark_forward_done(0);
  accumulator_.mark_forward_done(1);
  weight_.on_hook = [&] {
    weight_.on_hook = nullptr;
    put_and_close(second, 2);
    for (int i = 0; i < 100; ++i) accumulator_.open(0, call_path({1}), true);
    EXPECT_FALSE(weight_.tensor.grad().defined());  // the first must be added before
  };
  put_and_close(first, 1);
  EXPECT_THAT(weight_.applied, ElementsAre(1, 2));
  EXPECT_EQ(weight_.grad(), 3);
}

TEST_F(GradientAccumulatorTest, CountsBytesOfSparseGradients) {
  const auto table = at::zeros({4, 2}).requires_grad_();
  const auto edge = torch::autograd::impl::gradient_edge(table);
  const auto give = [&](ExecutionId id, at::Tensor gradient) {
    const at::NoGradGuard no_grad;
    GradientAccumulator::Pass(accumulator_, id, false)
        .put(static_cast<torch::autograd::AccumulateGrad&>(*edge.function), {std::move(gradient)});
  };
  const auto first = accumulator_.open(0, call_path({0}), false);
  const auto second = accumulator_.open(0, call_path({1}), false);
  accumulator_.recorded(first, {edge});
  accumulator_.recorded(second, {edge});
  accumulator_.mark_forward_done(0);
  give(second, at::sparse_coo_tensor(at::full({1, 1}, 1, at::kLong), at::ones({1, 2}), {4, 2}));
  EXPECT_EQ(accumulator_.waiting_bytes(), 0u);
  give(first, at::ones({4, 2}));
  EXPECT_EQ(accumulator_.waiting_bytes(), 0u);
  EXPECT_EQ(table.grad().sum().item<float>(), 10);
}

/// LibTorch's leaf steals a gradient that nobody else holds, though a view's bytes are another's.
TEST_F(GradientAccumulatorTest, DoesNotKeepBytesThatOthersSee) {
  const auto id = record(0);
  accumulator_.mark_forward_done(0);
  const auto sent = at::full({}, 3, at::kFloat);
  {
    const at::NoGradGuard no_grad;
    variable_list gradients;
    gradients.push_back(sent.detach());
    GradientAccumulator::Pass(accumulator_, id, false).put(weight_.leaf(), std::move(gradients));
  }
  EXPECT_NE(weight_.tensor.grad().data_ptr(), sent.data_ptr());
}

// ---- effort ------------------------------------------------------------------------------------

class GradientAccumulatorEffortTest : public GradientAccumulatorTest,
                                      public testing::WithParamInterface<std::string> {
 protected:
  std::vector<int> some_order(int calls) const {
    std::vector<int> order(static_cast<std::size_t>(calls));
    std::iota(order.begin(), order.end(), 0);
    if (GetParam() == "Descending") std::reverse(order.begin(), order.end());
    if (GetParam() == "Random") std::shuffle(order.begin(), order.end(), std::mt19937(7));
    return order;
  }
};
INSTANTIATE_TEST_SUITE_P(Orders, GradientAccumulatorEffortTest,
                         testing::Values("Ascending", "Descending", "Random"),
                         [](const auto& info) { return info.param; });

/// One module called often: each close concerns few, whatever else waits.
TEST_P(GradientAccumulatorEffortTest, IsLinearInTheCalls) {
  constexpr int kCalls = 1000;
  std::mt19937 random(1);
  std::vector<ExecutionId> ids;
  std::vector<float> gradients;
  for (int call = 0; call < kCalls; ++call) {
    ids.push_back(
        record_reaching({&weight_, &other_}, 0, call_path({static_cast<std::uint32_t>(call)})));
    gradients.push_back(std::ldexp(1.0F, static_cast<int>(random() % 60)));
  }
  accumulator_.mark_forward_done(0);
  for (const int call : some_order(kCalls)) {
    put(ids[call], weight_, gradients[call]);
    put(ids[call], other_, gradients[call]);
    accumulator_.close(ids[call]);
  }
  const float sum = std::accumulate(gradients.rbegin(), gradients.rend(), 0.0F);
  EXPECT_THAT(weight_.applied, ElementsAre(sum));
  EXPECT_THAT(other_.applied, ElementsAre(sum));
  EXPECT_LE(accumulator_.effort().pairs, 5u * 2 * kCalls);
  EXPECT_LE(accumulator_.effort().walks, std::uint64_t{kCalls});
}

/// Many modules on one rank: no parameter looks at executions that do not reach it.
TEST_P(GradientAccumulatorEffortTest, IsLinearInWhatExecutionsReach) {
  constexpr int kModules = 500;
  std::vector<std::unique_ptr<Watched>> weights;
  std::vector<ExecutionId> ids;
  for (int module = 0; module < kModules; ++module) {
    weights.push_back(std::make_unique<Watched>());
    const auto place = call_path({static_cast<std::uint32_t>(module)});
    for (int microbatch = 0; microbatch < 2; ++microbatch) {
      ids.push_back(record_reaching({weights.back().get()}, microbatch, place));
    }
  }
  accumulator_.mark_forward_done(0);
  accumulator_.mark_forward_done(1);
  for (const int module : some_order(kModules)) {
    for (int microbatch = 1; microbatch >= 0; --microbatch) {
      const auto id = ids[static_cast<std::size_t>(2 * module + microbatch)];
      put(id, *weights[static_cast<std::size_t>(module)], static_cast<float>(1 + microbatch));
      accumulator_.close(id);
    }
  }
  for (const auto& weight : weights) EXPECT_THAT(weight->applied, ElementsAre(1, 2));
  EXPECT_LE(accumulator_.effort().pairs, 5u * 2 * kModules);
  EXPECT_LE(accumulator_.effort().walks, 2u * kModules);
}

// ---- against a model ---------------------------------------------------------------------------

/// A step of random executions, events in random order, and beside it the rules as written: who
/// may still give is asked of everybody, after every event.
class RandomStep {
 public:
  RandomStep(GradientAccumulator& accumulator, ParameterNumbers& numbers, unsigned seed)
      : accumulator_(accumulator), random_(seed) {
    microbatches_.resize(1 + pick(4));
    for (std::size_t i = 1 + pick(5); i-- > 0;) parameters_.push_back(std::make_unique<Watched>());
    numbers.clear();
    for (const auto& parameter : parameters_) numbers.place(parameter->tensor);
    for (std::size_t i = 0; i < microbatches_.size(); ++i) add_calls(static_cast<int>(i));
  }

  void run(bool fails) {
    accumulator_.begin(static_cast<int>(microbatches_.size()));
    const auto most = fails ? pick(40) : std::size_t{100'000};
    for (std::size_t event = 0; event < most && happen(); ++event) {
      if (pick(3) == 0) continue;  // several marks are settled at once
      accumulator_.settle();
      compare();
    }
    if (fails) return accumulator_.drop();
    accumulator_.finish();
    finished_ = true;
    compare();
    check_effort();
  }

 private:
  struct Call {
    int microbatch = 0;
    OrderKey key;
    bool after = false;
    std::vector<std::size_t> reached, to_give, to_give_again;
    bool opened = false, recorded = false, closed = false;
    ExecutionId id;
  };
  struct Gift {
    std::size_t call, parameter;
    bool after;
    std::optional<float> gradient;
  };
  struct State {
    bool forward_done = false, done = false;
  };

  std::size_t pick(std::size_t count) { return random_() % count; }
  bool chance(int percent) { return pick(100) < static_cast<std::size_t>(percent); }

  void add_calls(int microbatch) {
    std::vector<OrderKey> keys(1);
    for (std::size_t i = pick(8); i-- > 0;) {
      keys.push_back(keys[pick(keys.size())].child(static_cast<std::uint32_t>(1000 * i + pick(9))));
    }
    for (const auto& key : keys) {
      Call call;
      call.microbatch = microbatch;
      call.key = key;
      call.after = chance(20);
      for (std::size_t i = 0; i < parameters_.size(); ++i) {
        if (chance(60)) call.reached.push_back(i);
      }
      for (const auto i : call.reached) {
        if (chance(85)) call.to_give.push_back(i);
        if (chance(15)) call.to_give_again.push_back(i);
      }
      std::shuffle(call.to_give.begin(), call.to_give.end(), random_);
      calls_.push_back(std::move(call));
    }
    std::shuffle(calls_.begin(), calls_.end(), random_);
  }

  /// Does one thing that may happen now; false if nothing is left.
  bool happen() {
    std::vector<std::function<void()>> possible;
    for (std::size_t i = 0; i < calls_.size(); ++i) add_possible(i, possible);
    for (std::size_t i = 0; i < microbatches_.size(); ++i) add_possible_marks(i, possible);
    if (possible.empty()) return false;
    possible[pick(possible.size())]();
    return true;
  }

  void add_possible(std::size_t number, std::vector<std::function<void()>>& possible) {
    auto& call = calls_[number];
    const bool forward_done = microbatches_[static_cast<std::size_t>(call.microbatch)].forward_done;
    if (!call.opened) {
      possible.emplace_back([this, &call] { open(call); });
    } else if (!call.recorded) {
      possible.emplace_back([this, &call] { record(call); });
    } else if (!call.to_give.empty() && (forward_done || chance(20))) {
      possible.emplace_back([this, number] { give(number, calls_[number].to_give, false); });
    } else if (call.to_give.empty() && !call.to_give_again.empty()) {
      possible.emplace_back([this, number] { give(number, calls_[number].to_give_again, true); });
    }
    if (call.recorded && call.to_give.empty() && !call.closed) {
      possible.emplace_back([this, &call] { close(call); });
    }
  }

  void add_possible_marks(std::size_t number, std::vector<std::function<void()>>& possible) {
    auto& state = microbatches_[number];
    bool recorded = true, given = true;
    for (const auto& call : calls_) {
      if (call.microbatch != static_cast<int>(number)) continue;
      recorded &= call.after || call.recorded;
      given &= call.recorded && call.to_give.empty() && call.to_give_again.empty();
    }
    if (recorded && !state.forward_done) {
      possible.emplace_back([this, number, &state] {
        state.forward_done = true;
        accumulator_.mark_forward_done(static_cast<int>(number));
      });
    }
    if (recorded && given && !state.done && chance(20)) {
      possible.emplace_back([this, number, &state] { end_microbatch(number, state); });
    }
  }

  void open(Call& call) {
    call.opened = true;
    call.id = accumulator_.open(call.microbatch, call.key, call.after);
  }
  void record(Call& call) {
    call.recorded = true;
    edge_list roots;
    for (const auto i : call.reached) {
      const auto& tensor = parameters_[i]->tensor;
      roots.push_back(torch::autograd::impl::gradient_edge(chance(50) ? tensor : tensor * 2));
    }
    accumulator_.recorded(call.id, std::move(roots));
  }
  void give(std::size_t number, std::vector<std::size_t>& parameters, bool after) {
    auto& call = calls_[number];
    Gift gift{number, parameters.back(), after || call.after, std::nullopt};
    parameters.pop_back();
    const float sign = chance(50) ? 1.0F : -1.0F;
    if (chance(95)) gift.gradient = sign * std::ldexp(1.0F, static_cast<int>(pick(70)));
    gifts_.push_back(gift);
    const at::NoGradGuard no_grad;
    GradientAccumulator::Pass pass(accumulator_, call.id, after);
    const auto& leaf = *parameters_[gift.parameter];
    pass.put(leaf.leaf(), {gift.gradient ? at::full({}, *gift.gradient) : at::Tensor()});
  }
  void close(Call& call) {
    call.closed = true;
    chance(50) ? accumulator_.mark_closed(call.id) : accumulator_.close(call.id);
  }
  void end_microbatch(std::size_t number, State& state) {
    state.done = state.forward_done = true;
    for (auto& call : calls_) call.closed |= call.microbatch == static_cast<int>(number);
    accumulator_.mark_microbatch_done(static_cast<int>(number));
  }

  // ---- the rules

  /// Whether a call with a key above `above` (nullptr: any) may still give to the parameter.
  bool may_come(int microbatch, std::size_t parameter, const OrderKey* above) const {
    for (std::size_t i = 0; i < calls_.size(); ++i) {
      const auto& call = calls_[i];
      if (call.microbatch != microbatch || call.after || call.closed || finished_) continue;
      if (above != nullptr && call.key <= *above) continue;
      if (std::count(call.reached.begin(), call.reached.end(), parameter) == 0) continue;
      const bool given = std::any_of(gifts_.begin(), gifts_.end(), [&](const Gift& gift) {
        return gift.call == i && gift.parameter == parameter && !gift.after;
      });
      if (!given) return true;
    }
    return false;
  }
  bool complete(int microbatch, std::size_t parameter) const {
    if (finished_) return true;
    return microbatches_[static_cast<std::size_t>(microbatch)].forward_done &&
           !may_come(microbatch, parameter, nullptr);
  }
  /// What one microbatch gave to one parameter so far, in the order of the sum.
  std::vector<Gift> gifts(int microbatch, std::size_t parameter, bool after) const {
    std::vector<Gift> result;
    for (const auto& gift : gifts_) {
      const bool own = calls_[gift.call].microbatch == microbatch && gift.parameter == parameter;
      if (own && gift.after == after) result.push_back(gift);
    }
    std::stable_sort(result.begin(), result.end(), [this](const Gift& a, const Gift& b) {
      return calls_[a.call].key > calls_[b.call].key;
    });
    return result;
  }
  static void append_sum(const std::vector<Gift>& gifts, std::vector<float>& sums) {
    std::optional<float> sum;
    for (const auto& gift : gifts) {
      if (gift.gradient) sum = sum ? *sum + *gift.gradient : *gift.gradient;
    }
    if (sum) sums.push_back(*sum);
  }

  void compare() const {
    std::size_t waiting = 0;
    for (std::size_t parameter = 0; parameter < parameters_.size(); ++parameter) {
      std::vector<float> sums;
      bool turn = true;
      for (int i = 0; i < static_cast<int>(microbatches_.size()); ++i) {
        const auto given = gifts(i, parameter, false);
        turn = turn && complete(i, parameter);
        turn ? append_sum(given, sums) : void(waiting += waiting_of(i, parameter, given));
        waiting += waiting_of_rest(i, gifts(i, parameter, true));
      }
      if (finished_) {
        for (int i = 0; i < static_cast<int>(microbatches_.size()); ++i) {
          append_sum(gifts(i, parameter, true), sums);
        }
      }
      ASSERT_EQ(parameters_[parameter]->applied, sums) << "parameter " << parameter;
      if (sums.empty()) continue;
      const auto all = std::accumulate(sums.begin() + 1, sums.end(), sums[0]);
      ASSERT_EQ(parameters_[parameter]->grad(), all);
    }
    ASSERT_EQ(accumulator_.waiting_bytes(), waiting * sizeof(float));
  }

  /// Gradients held: one sum of those before which nothing may come, and the others.
  std::size_t waiting_of(int microbatch, std::size_t parameter,
                         const std::vector<Gift>& given) const {
    std::size_t result = 0;
    bool summed = false;
    for (const auto& gift : given) {
      if (!gift.gradient) continue;
      const bool certain = microbatches_[static_cast<std::size_t>(microbatch)].forward_done &&
                           !may_come(microbatch, parameter, &calls_[gift.call].key);
      result += certain ? 0 : 1;
      summed |= certain;
    }
    return result + (summed ? 1 : 0);
  }
  std::size_t waiting_of_rest(int microbatch, const std::vector<Gift>& given) const {
    if (finished_) return 0;
    const auto defined = static_cast<std::size_t>(std::count_if(
        given.begin(), given.end(), [](const Gift& gift) { return gift.gradient.has_value(); }));
    const bool done = microbatches_[static_cast<std::size_t>(microbatch)].done;
    return done ? std::min<std::size_t>(defined, 1) : defined;
  }

  void check_effort() const {
    std::size_t reached = 0;
    for (const auto& call : calls_) reached += call.reached.size();
    const auto cells = parameters_.size() * microbatches_.size();
    EXPECT_LE(accumulator_.effort().pairs, 3 * reached + 2 * gifts_.size() + cells);
    EXPECT_LE(accumulator_.effort().walks, calls_.size());
  }

  GradientAccumulator& accumulator_;
  std::mt19937 random_;
  std::vector<State> microbatches_;
  std::vector<std::unique_ptr<Watched>> parameters_;
  std::vector<Call> calls_;
  std::vector<Gift> gifts_;  // in order of arrival
  bool finished_ = false;
};

TEST(GradientAccumulatorRandomTest, DoesWhatTheRulesSay) {
  ParameterNumbers numbers;
  GradientAccumulator accumulator(numbers, [](const at::Tensor&) {});
  for (unsigned seed = 0; seed < 2000; ++seed) {
    SCOPED_TRACE(seed);
    RandomStep(accumulator, numbers, seed).run(seed % 10 == 9);
    if (testing::Test::HasFatalFailure() || testing::Test::HasNonfatalFailure()) return;
  }
}

}  // namespace
}  // namespace smp::server
