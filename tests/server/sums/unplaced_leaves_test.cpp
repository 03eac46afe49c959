// Gradients of leaves of no model are there at once, and in the end as if microbatches had come in
// order.
#include "server/sums/unplaced_leaves.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/variable.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace smp::server {
namespace unplaced_leaves_test {

constexpr double kTerms[] = {1e17, 3.0, -1e17, 5.0};  // any other order gives another sum

class UnplacedLeavesTest : public testing::Test {
 protected:
  UnplacedLeavesTest() { leaves_.begin(4); }
  void add(std::uint32_t microbatch, const at::Tensor& gradient, bool grad_mode = false) {
    LeafSum sum{torch::autograd::impl::grad_accumulator(leaf_), grad_mode, gradient};
    leaves_.update(7, microbatch, std::move(sum));
  }
  void add(std::uint32_t microbatch) {
    add(microbatch, at::full({2}, kTerms[microbatch], at::kDouble));
  }
  /// In order, by plain additions.
  static at::Tensor expected(double before = 0) {
    auto sum = at::full({2}, before, at::kDouble);
    for (const double term : kTerms) sum += term;
    return sum;
  }

  at::Tensor leaf_ = at::zeros({2}, at::kDouble).requires_grad_();
  UnplacedLeaves leaves_;
};

TEST_F(UnplacedLeavesTest, AreInOrderInTheEndAndThereAtOnce) {
  for (const auto& order : std::vector<std::vector<std::uint32_t>>{
           {0, 1, 2, 3}, {3, 2, 1, 0}, {2, 0, 3, 1}, {1, 3, 0, 2}}) {
    for (const double before : {0.0, 0.125}) {
      leaf_.mutable_grad().reset();
      if (before != 0) leaf_.mutable_grad() = at::full({2}, before, at::kDouble);
      leaves_.begin(4);
      auto at_once = at::full({2}, before, at::kDouble);
      for (const auto microbatch : order) {
        add(microbatch);
        at_once += kTerms[microbatch];
        EXPECT_TRUE(at::equal(leaf_.grad(), at_once));
      }
      const auto same = leaf_.grad();
      leaves_.put_in_order();
      EXPECT_TRUE(at::equal(leaf_.grad(), expected(before)));
      EXPECT_TRUE(leaf_.grad().is_same(same)) << "whoever holds it sees it";
    }
  }
}

TEST_F(UnplacedLeavesTest, OfOneMicrobatchAreAddedAsTheyCome) {
  add(2, at::full({2}, 1e17, at::kDouble));
  add(2, at::full({2}, -1e17, at::kDouble));
  add(0, at::full({2}, 3.0, at::kDouble));
  leaves_.put_in_order();
  EXPECT_TRUE(at::equal(leaf_.grad(), at::full({2}, 3.0 + 1e17 - 1e17, at::kDouble)));
}

TEST_F(UnplacedLeavesTest, ThatTheProgramWritesAreItsOwnAffair) {
  add(3);
  leaf_.grad().zero_();
  add(1);
  leaves_.put_in_order();
  EXPECT_TRUE(at::equal(leaf_.grad(), at::full({2}, kTerms[1], at::kDouble)));
  leaves_.begin(4);
  leaf_.mutable_grad().reset();
  add(3);
  add(1);
  leaf_.mutable_grad() = at::full({2}, 9.0, at::kDouble);
  leaves_.put_in_order();
  EXPECT_TRUE(at::equal(leaf_.grad(), at::full({2}, 9.0, at::kDouble)));
}

TEST_F(UnplacedLeavesTest, HooksHaveChangedWhatIsAddedAgain) {
  leaf_.register_hook([](const at::Tensor& gradient) { return gradient * 2; });
  for (const std::uint32_t microbatch : {3u, 0u, 2u, 1u}) add(microbatch);
  leaves_.put_in_order();
  EXPECT_TRUE(at::equal(leaf_.grad(), expected() * 2));
}

TEST_F(UnplacedLeavesTest, ThatShareTheirGradientsWithOthersKeepTheirTerms) {
  const auto shared = at::full({2}, 1e17, at::kDouble);
  add(3, shared);
  add(1, at::full({2}, 5.0, at::kDouble));
  const auto later = at::full({2}, -1e17, at::kDouble);
  add(0, later);
  shared.zero_();
  later.zero_();
  leaves_.put_in_order();
  EXPECT_TRUE(at::equal(leaf_.grad(), at::full({2}, -1e17 + 5.0 + 1e17, at::kDouble)));
}

TEST_F(UnplacedLeavesTest, MayHaveSparseGradients) {
  leaf_ = at::zeros({4, 1}, at::kDouble).requires_grad_();
  const auto rows = [](std::int64_t row, double value) {
    return at::sparse_coo_tensor(at::full({1, 1}, row, at::kLong),
                                 at::full({1, 1}, value, at::kDouble), {4, 1});
  };
  add(2, rows(1, 1e17));
  add(0, rows(1, -1e17));
  add(1, rows(1, 3.0));
  leaves_.put_in_order();
  ASSERT_TRUE(leaf_.grad().is_sparse());
  EXPECT_EQ(leaf_.grad().to_dense()[1][0].item<double>(), -1e17 + 3.0 + 1e17);
}

TEST_F(UnplacedLeavesTest, AreForgottenWhenTheyAreGone) {
  add(1);
  leaf_ = at::zeros({2}, at::kDouble).requires_grad_();
  leaves_.forget_gone();
  add(0);
  leaves_.put_in_order();
  EXPECT_TRUE(at::equal(leaf_.grad(), at::full({2}, kTerms[0], at::kDouble)));
}

TEST_F(UnplacedLeavesTest, WithAHistoryOfGradientsAreAddedAsTheyCome) {
  add(3, at::full({2}, 1.0, at::kDouble).requires_grad_() * 2, true);
  add(0, at::full({2}, 5.0, at::kDouble), true);
  leaves_.put_in_order();
  EXPECT_TRUE(leaf_.grad().requires_grad());
  EXPECT_TRUE(at::equal(leaf_.grad(), at::full({2}, 7.0, at::kDouble)));
}

}  // namespace unplaced_leaves_test
}  // namespace smp::server
