// Wholes that are joined when something uses them: values, gradients by either way, hooks, and what
// is sent.
#include "tp/group/joined_when_used.h"

#include <gmock/gmock.h>

#include "smp/tp/primitives.h"
#include "smp/wait.h"
#include "tp/layer_comparison.h"

namespace smp::tp {
namespace joined_when_used_test {

constexpr std::int64_t kDim = 1, kLength = 5, kPart = 3;  // of two ranks

at::Tensor whole() { return numbers(1, {2, kLength, 4})[0]; }

/// What rank `rank` of two has of it.
at::Tensor part(int rank) {
  return at::constant_pad_nd(whole(), {0, 0, 0, 1}).narrow(kDim, kPart * rank, kPart).contiguous();
}

at::Tensor joined_of(const at::Tensor& own) { return joined_when_used(own, kDim, kLength); }

void on_two(const std::function<void(int)>& main) {
  d2d::SimulatedJob job(2, 4);
  on_group(job, 2, main, Batches::kPrescaled);
}

TEST(JoinedWhenUsed, HasItsShapeAtOnceAndItsValuesWhenAnOperatorAsks) {
  on_two([](int rank) {
    const auto y = joined_of(part(rank));
    EXPECT_FALSE(y.has_storage());
    EXPECT_EQ(y.sizes(), whole().sizes());
    EXPECT_TRUE(y.is_contiguous());
    EXPECT_TRUE(at::equal(y * 2, whole() * 2));
    EXPECT_TRUE(y.has_storage());
    EXPECT_TRUE(at::equal(y, whole()));
  });
}

TEST(JoinedWhenUsed, HasItsValuesAfterAWait) {
  on_two([](int rank) {
    const auto y = joined_of(part(rank));
    EXPECT_ANY_THROW(static_cast<void>(y.data_ptr()));
    EXPECT_EQ(wait(y).data_ptr<double>()[1], whole().data_ptr<double>()[1]);
  });
}

TEST(JoinedWhenUsed, IsWrittenAsAnyOtherTensor) {
  on_two([](int rank) {
    const auto y = joined_of(part(rank)), copy = y.detach();
    y.add_(1);
    EXPECT_TRUE(at::equal(y, whole() + 1));
    EXPECT_FALSE(part_of_joined(y, kDim).defined());
    EXPECT_TRUE(at::equal(copy, y)) << "which shares its memory";
  });
}

TEST(JoinedWhenUsed, SendsNothingToWhomTakesThePart) {
  d2d::SimulatedJob job(2, 4);
  on_group(job, 2, [](int) {
    auto& group = TensorParallel::current();
    double sent = 0;
    group.set_alone(true);
    group.set_traffic_listener([&](const Traffic& forward, const Traffic& backward) {
      sent += forward.bytes + backward.bytes;
    });
    const auto own = part(0).requires_grad_();
    const auto y = joined_of(own * 1);
    EXPECT_TRUE(at::equal(part_of_joined(y, kDim), own));
    EXPECT_FALSE(part_of_joined(y, 0).defined()) << "along another dimension";
    EXPECT_EQ(sent, 0);
    static_cast<void>(y + 1);
    EXPECT_EQ(sent, part(0).nbytes());
    group.set_traffic_listener({});
    group.set_alone(false);
  });
}

double factor_of(char use) { return use == 'p' ? 2 : 3; }

/// Uses the whole ('w') or its part ('p'), one after the other; the loss is the same on both ranks.
at::Tensor loss_of(const at::Tensor& y, const std::string& uses) {
  auto loss = at::zeros({}, at::kDouble);
  for (const char use : uses) {
    const auto squares =
        use == 'w'
            ? y.square()
            : join_parts_for_tp(part_of_joined(y, kDim).square(), kDim).narrow(kDim, 0, kLength);
    loss = loss + (squares * factor_of(use) * weights_like(squares, 0)).sum();
  }
  return loss;
}

/// The gradient of the whole.
at::Tensor expected_gradient(const std::string& uses) {
  double factor = 0;
  for (const char use : uses) factor += factor_of(use);
  return 2 * factor * whole() * weights_like(whole(), 0);
}

at::Tensor own_of(const at::Tensor& gradient, int rank) {
  return at::constant_pad_nd(gradient, {0, 0, 0, 1}).narrow(kDim, kPart * rank, kPart);
}

TEST(JoinedWhenUsed, HasTheGradientOfAllItsUses) {
  for (const std::string uses : {"w", "p", "pw", "pp", "ppw"}) {
    SCOPED_TRACE(uses);
    on_two([&](int rank) {
      const auto own = part(rank).requires_grad_();
      const auto y = joined_of(own * 1);
      backward(loss_of(y, uses), at::ones({}, at::kDouble));
      expect_near(own.grad(), own_of(expected_gradient(uses), rank), 1e-12, "gradient of the part");
    });
  }
}

TEST(JoinedWhenUsed, ShowsItsGradientToHooks) {
  for (const std::string uses : {"p", "pw"}) {
    SCOPED_TRACE(uses);
    on_two([&](int rank) {
      const auto own = part(rank).requires_grad_();
      auto y = joined_of(own * 1);
      at::Tensor before, after;
      y.register_hook([&](const at::Tensor& gradient) { before = gradient * 1; });
      const auto loss = loss_of(y, uses);
      y.register_hook([&](const at::Tensor& gradient) {
        after = gradient * 1;
        return gradient * 2;
      });
      y.retain_grad();
      backward(loss, at::ones({}, at::kDouble));
      expect_near(before, expected_gradient(uses), 1e-12, "the gradient in a hook");
      expect_near(after, expected_gradient(uses), 1e-12, "the gradient in a later hook");
      expect_near(own.grad(), 2 * own_of(expected_gradient(uses), rank), 1e-12, "what it returned");
      expect_near(y.grad().detach(), 2 * expected_gradient(uses), 1e-12, "what is retained");
    });
  }
}

}  // namespace joined_when_used_test
}  // namespace smp::tp
