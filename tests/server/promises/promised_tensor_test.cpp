// Tensors that ask for their values when something needs them, and are ordinary ones from then on.
#include "server/promises/promised_tensor.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <torch/csrc/autograd/custom_function.h>

#include <memory>
#include <utility>
#include <vector>

#include "support/refusal.h"

namespace smp::server {
namespace promised_tensor_test {

using at::Tensor;
using testing::HasSubstr;

struct Values final : PromisedValues {
  explicit Values(Tensor of, bool linked = false) : tensor(std::move(of)), is_linked(linked) {}
  Value value(std::size_t index) override {
    EXPECT_EQ(index, 3u);
    ++asked;
    return {tensor, is_linked};
  }
  void forget(std::size_t) noexcept override { ++forgotten; }
  Tensor tensor;
  bool is_linked;
  int asked = 0, forgotten = 0;
};

class PromisedTensorTest : public testing::Test {
 protected:
  Tensor promise(const Tensor& of, bool linked = false) {
    values_ = std::make_shared<Values>(of, linked);
    return promised_tensor(values_, 3, of.scalar_type(), of.device().type());
  }
  std::shared_ptr<Values> values_;
};

TEST_F(PromisedTensorTest, AsksOnceAndOnlyIfItIsUsed) {
  auto tensor = promise(at::arange(6, at::kFloat).view({2, 3}));
  const auto same = tensor;
  EXPECT_TRUE(tensor.defined());
  EXPECT_EQ(tensor.dtype(), at::kFloat);
  EXPECT_FALSE(tensor.requires_grad());
  EXPECT_EQ(promise_of(tensor).values.get(), values_.get());
  EXPECT_EQ(promise_of(tensor).index, 3u);
  EXPECT_EQ(values_->asked, 0);
  EXPECT_EQ((tensor + 1)[1][2].item<float>(), 6);
  EXPECT_EQ(same.sum().item<float>(), 15);
  EXPECT_EQ(values_->asked, 1);
  EXPECT_EQ(values_->forgotten, 1);
  EXPECT_EQ(promise_of(tensor).values, nullptr);
  EXPECT_EQ(tensor.const_data_ptr(), values_->tensor.const_data_ptr());
}

TEST_F(PromisedTensorTest, AnswersForItsSizes) {
  const auto value = at::ones({4, 2}).t();
  EXPECT_EQ(promise(value).dim(), 2);
  EXPECT_EQ(promise(value).numel(), 8);
  EXPECT_EQ(promise(value).size(-1), 4);
  EXPECT_EQ(promise(value).sizes(), value.sizes());
  EXPECT_EQ(promise(value).strides(), value.strides());
  EXPECT_EQ(promise(value).sym_sizes(), value.sym_sizes());
  EXPECT_EQ(promise(value).storage_offset(), 0);
  EXPECT_FALSE(promise(value).is_contiguous());
  EXPECT_TRUE(promise(value).is_non_overlapping_and_dense());
  EXPECT_EQ(promise(value).nbytes(), 32u);
}

TEST_F(PromisedTensorTest, InListsAndOptionalArguments) {
  EXPECT_EQ(at::cat({promise(at::ones({2})), at::zeros({1}), promise(at::ones({3}))}).numel(), 6);
  EXPECT_EQ(at::arange(5).index({promise(at::tensor({1, 3}))}).sum().item<std::int64_t>(), 4);
  EXPECT_EQ(at::layer_norm(at::ones({2, 3}), {3}, promise(at::ones({3})), promise(at::ones({3})))
                .sum()
                .item<float>(),
            6);
  EXPECT_EQ(at::einsum("i,i", {promise(at::ones({3})), at::ones({3})}).item<float>(), 3);
}

TEST_F(PromisedTensorTest, MayBeWritten) {
  auto tensor = promise(at::ones({2}));
  tensor.add_(1).mul_(3);
  EXPECT_EQ(tensor.sum().item<float>(), 12);
  EXPECT_EQ(tensor._version(), 2);
}

TEST_F(PromisedTensorTest, WithoutUseHasNoMemory) {
  const auto tensor = promise(at::ones({2}));
  EXPECT_THAT(refusal<std::exception>([&] { tensor.data_ptr(); }), HasSubstr("smp::wait(tensor)"));
  fetch(tensor);
  EXPECT_NE(tensor.data_ptr(), nullptr);
}

TEST_F(PromisedTensorTest, ThatNobodyUsesIsForgotten) {
  { const auto tensor = promise(at::ones({2})); }
  EXPECT_EQ(values_->asked, 0);
  EXPECT_EQ(values_->forgotten, 1);
  EXPECT_EQ(values_.use_count(), 1);
}

/// A result that is an argument: what is written to one is seen in the other.
TEST_F(PromisedTensorTest, MayTurnOutToBeAnother) {
  const auto another = at::ones({2}).requires_grad_() * 1;
  const auto tensor = promise(another, /*linked=*/true);
  EXPECT_TRUE((tensor * 2).requires_grad());
  tensor.add_(4);
  EXPECT_EQ(another.sum().item<float>(), 10);
  EXPECT_EQ(tensor.sizes(), another.sizes());
  EXPECT_TRUE(fetched(tensor).is_same(another));
  EXPECT_TRUE(at::equal(at::stack({tensor, tensor}).detach(), at::full({2, 2}, 5.f)));
  EXPECT_EQ(promise_of(tensor).values, nullptr);
  EXPECT_EQ(values_->asked, 1);
}

TEST_F(PromisedTensorTest, OfAnOrdinaryTensorThereIsNone) {
  const auto tensor = at::ones({2});
  EXPECT_EQ(promise_of(tensor).values, nullptr);
  EXPECT_EQ(promise_of(Tensor()).values, nullptr);
  EXPECT_TRUE(fetched(tensor).is_same(tensor));
  fetch(Tensor());
}

struct Square : torch::autograd::Function<Square> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x) {
    context->save_for_backward({x});
    return x * x;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    return {2 * context->get_saved_variables()[0] * gradients[0]};
  }
};

TEST_F(PromisedTensorTest, InAFunctionOfTheUser) {
  const auto leaf = at::full({2}, 3.f).requires_grad_();
  const auto tensor = promise(leaf * 1);
  Square::apply(fetched(tensor)).sum().backward();
  EXPECT_EQ(leaf.grad().sum().item<float>(), 12);
}

}  // namespace promised_tensor_test
}  // namespace smp::server
