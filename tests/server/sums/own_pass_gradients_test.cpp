// Gradients of passes of LibTorch's own engine: shown to the code that began the pass, and added in
// an order that does not depend on how they come.
#include "server/sums/own_pass_gradients.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "fiber/scheduler.h"
#include "server/running/execution_scope.h"
#include "server/running/inside_node.h"
#include "server/running/leaf_hooks.h"

namespace smp::server {
namespace own_pass_gradients_test {

/// A gradient, and where it comes from.
struct Given {
  std::uint32_t microbatch;
  std::uint32_t call;  ///< of the body: its place in the program
  double value;
  bool in_hook = false;
};

class OwnPassGradientsTest : public testing::Test {
 protected:
  OwnPassGradientsTest() {
    fiber::Scheduler::install();
    begin(4);
  }
  ~OwnPassGradientsTest() override { step_.clear(); }

  void begin(int microbatches) {
    step_.clear();
    own_.clear();
    step_.begin(microbatches);
    numbers_.place(weight_);
  }
  auto& leaf() {
    leaf_ = torch::autograd::impl::grad_accumulator(weight_);
    return static_cast<torch::autograd::AccumulateGrad&>(*leaf_);
  }
  /// Runs `code` as an execution of the microbatch.
  template <class Code>
  void in_execution(std::uint32_t microbatch, std::uint32_t call, Code&& code) {
    const int number = static_cast<int>(microbatch);
    const auto id = step_.open(number, OrderKey().child(call), false);
    const ExecutionScope scope(services_, {kBody, number, schedule::Phase::kBackward, false, id},
                               {}, 0);
    code();
  }
  bool take(double value) {
    const at::NoGradGuard no_grad;
    return own_.take(leaf(), at::full({2}, value, at::kDouble));
  }
  void give(const Given& given) {
    if (given.in_hook) {
      const LeafHooks hooks(given.microbatch, given.call, own_);
      EXPECT_TRUE(take(given.value));
    } else {
      in_execution(given.microbatch, given.call, [&] { EXPECT_TRUE(take(given.value)); });
    }
  }
  double grad() const { return weight_.grad()[0].item<double>(); }

  const base::SteadyClock clock_;
  ScopeServices services_{GlobalRank(0), clock_};
  ParameterNumbers numbers_;
  StepMicrobatches step_;
  OwnPassGradients own_{numbers_, step_};
  at::Tensor weight_ = at::zeros({2}, at::kDouble).requires_grad_();
  NodePointer<torch::autograd::Node> leaf_;
};

// 1e17 swallows what is small, so every order has a sum of its own.
TEST_F(OwnPassGradientsTest, AreAddedByMicrobatchThenByPlaceThenThoseOfHooks) {
  const std::vector<Given> in_order{{0, 1, 1e17},        {0, 2, 3.0},      {1, 1, -1e17},
                                    {2, 1, 5.0},         {2, 4, 1e17},     {3, 0, 7.0},
                                    {0, 0, -1e17, true}, {1, 3, 9.0, true}};
  double expected = 0;
  for (const auto& given : in_order) expected += given.value;
  std::vector<std::size_t> order(in_order.size());
  std::iota(order.begin(), order.end(), 0);
  std::uint32_t dice = 1;
  for (int round = 0; round < 200; ++round) {
    SCOPED_TRACE(round);
    begin(4);
    weight_.mutable_grad().reset();
    std::vector<int> left(4);
    for (const auto& given : in_order) left[given.microbatch] += given.in_hook ? 0 : 1;
    for (const auto number : order) {
      const auto& given = in_order[number];
      give(given);
      if (!given.in_hook && --left[given.microbatch] == 0) own_.close(given.microbatch);
    }
    own_.finish();
    EXPECT_EQ(grad(), expected);
    for (std::size_t i = order.size() - 1; i > 0; --i) {
      dice = dice * 1664525 + 1013904223;
      std::swap(order[i], order[(dice >> 8) % (i + 1)]);
    }
  }
}

TEST_F(OwnPassGradientsTest, StandInGradUntilSomebodyElseAddsToIt) {
  for (const bool before : {false, true}) {
    SCOPED_TRACE(before);
    begin(4);
    weight_.mutable_grad().reset();
    if (before) weight_.mutable_grad() = at::full({2}, 100.0, at::kDouble);
    const auto first = weight_.grad();
    in_execution(2, 0, [&] {
      EXPECT_TRUE(take(1.0));
      EXPECT_EQ(grad(), (before ? 100 : 0) + 1.0);
      EXPECT_TRUE(take(2.0));
      EXPECT_EQ(grad(), (before ? 100 : 0) + 3.0);
    });
    own_.withdraw(numbers_.of(weight_));
    EXPECT_TRUE(weight_.grad().is_same(first));
    own_.finish();
    EXPECT_EQ(grad(), (before ? 100 : 0) + 3.0);
  }
}

TEST_F(OwnPassGradientsTest, OfTwoExecutionsAreEachShownToItsOwn) {
  in_execution(1, 0, [&] {
    EXPECT_TRUE(take(1.0));
    in_execution(2, 0, [&] {
      EXPECT_TRUE(take(4.0));
      EXPECT_EQ(grad(), 4.0);
    });
    EXPECT_TRUE(take(2.0));
    EXPECT_EQ(grad(), 2.0) << "what came before is withdrawn";
  });
  own_.finish();
  EXPECT_EQ(grad(), 7.0);
}

TEST_F(OwnPassGradientsTest, ThatTheProgramChangesAreItsOwnAffair) {
  in_execution(1, 0, [&] {
    EXPECT_TRUE(take(1.0));
    weight_.grad().mul_(10);
  });
  give({2, 0, 5.0});
  own_.finish();
  EXPECT_EQ(grad(), 15.0);
}

TEST_F(OwnPassGradientsTest, ThatTheProgramTakesOutAreGone) {
  weight_.mutable_grad() = at::full({2}, 100.0, at::kDouble);
  const auto before = weight_.grad();
  in_execution(1, 0, [&] {
    weight_.mutable_grad().reset();
    EXPECT_TRUE(take(1.0));
    EXPECT_EQ(grad(), 1.0);
    weight_.mutable_grad() = before;
  });
  give({1, 1, 5.0});
  own_.finish();
  EXPECT_EQ(grad(), 105.0);
}

TEST_F(OwnPassGradientsTest, InsideANodeAreNotShown) {
  in_execution(1, 0, [&] {
    const InsideNode node;
    EXPECT_TRUE(take(1.0));
    EXPECT_FALSE(weight_.grad().defined());
  });
  own_.finish();
  EXPECT_EQ(grad(), 1.0);
}

TEST_F(OwnPassGradientsTest, AreKeptThoughTheirMemoryIsWrittenLater) {
  const auto shared = at::full({2}, 1.0, at::kDouble);
  in_execution(1, 0, [&] {
    const InsideNode node;
    const at::NoGradGuard no_grad;
    EXPECT_TRUE(own_.take(leaf(), at::Tensor(shared)));
  });
  shared.zero_();
  own_.finish();
  EXPECT_EQ(grad(), 1.0);
}

TEST_F(OwnPassGradientsTest, MayBeSparse) {
  weight_ = at::zeros({3, 1}, at::kDouble).requires_grad_();
  numbers_.clear();
  begin(4);
  const auto rows = [](std::int64_t row, double value) {
    return at::sparse_coo_tensor(at::full({1, 1}, row, at::kLong),
                                 at::full({1, 1}, value, at::kDouble), {3, 1});
  };
  const at::NoGradGuard no_grad;
  in_execution(3, 0, [&] { EXPECT_TRUE(own_.take(leaf(), rows(1, 2.0))); });
  in_execution(0, 0, [&] { EXPECT_TRUE(own_.take(leaf(), rows(1, 3.0))); });
  own_.finish();
  ASSERT_TRUE(weight_.grad().is_sparse());
  EXPECT_EQ(weight_.grad().to_dense()[1][0].item<double>(), 5.0);
}

TEST_F(OwnPassGradientsTest, AreLibTorchsWhereItsOrderIsTheProgramsOrItsGraphIsWanted) {
  in_execution(1, 0, [&] {
    EXPECT_FALSE(own_.take(leaf(), at::ones({2}, at::kDouble))) << "with create_graph";
  });
  begin(1);
  in_execution(0, 0, [&] { EXPECT_FALSE(take(1.0)) << "one microbatch"; });
}

}  // namespace own_pass_gradients_test
}  // namespace smp::server
