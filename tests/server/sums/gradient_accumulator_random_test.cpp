// Random steps, compared after every event with a model that applies the rules as they are written.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "server/sums/gradient_accumulator.h"
#include "server/sums/gradient_accumulator_testing.h"

namespace smp::server::test {
namespace gradient_accumulator_random_test {

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
    ASSERT_EQ(accumulator_.waiting().bytes(), waiting * sizeof(float));
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

}  // namespace gradient_accumulator_random_test
}  // namespace smp::server::test
