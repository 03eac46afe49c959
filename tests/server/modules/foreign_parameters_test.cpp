// Parameters of other ranks: their memory is freed, their identity stays, and every use is named.
#include "server/modules/foreign_parameters.h"

#include <ATen/ATen.h>
#include <ATen/TensorIndexing.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <torch/csrc/autograd/variable.h>

#include "support/refusal.h"

namespace smp::server {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class ForeignParametersTest : public testing::Test {
 protected:
  void SetUp() override { foreign_.shrink("block.weight", weight_, GlobalRank(2)); }

  at::Tensor weight_ = at::ones({32, 8}).requires_grad_();
  const void* const identity_ = weight_.unsafeGetTensorImpl();
  ForeignParameters foreign_{GlobalRank(1)};
};

TEST_F(ForeignParametersTest, KeepIdentityAndShapeButNoMemory) {
  EXPECT_EQ(weight_.unsafeGetTensorImpl(), identity_);
  EXPECT_EQ(weight_.sizes(), at::IntArrayRef({32, 8}));
  EXPECT_EQ(weight_.strides(), at::IntArrayRef({8, 1}));
  EXPECT_EQ(weight_.scalar_type(), at::kFloat);
  EXPECT_EQ(weight_.device(), at::kCPU);
  EXPECT_EQ(weight_.layout(), at::kStrided);
  EXPECT_TRUE(weight_.requires_grad());
  EXPECT_TRUE(weight_.is_leaf());
  EXPECT_FALSE(weight_.has_storage());
  EXPECT_EQ(foreign_.freed_bytes(), 32 * 8 * sizeof(float));
}

TEST_F(ForeignParametersTest, FreeTheirMemory) {
  auto other = at::ones({4});
  const auto storage = other.storage();
  foreign_.shrink("block.bias", other, GlobalRank(2));
  EXPECT_EQ(storage.use_count(), 1u);
}

TEST_F(ForeignParametersTest, AreShrunkOnce) {
  foreign_.shrink("tied.weight", weight_, GlobalRank(3));
  EXPECT_EQ(foreign_.size(), 1u);
  EXPECT_THAT(refusal([&] { weight_.sum(); }), HasSubstr("parameter block.weight lives on rank 2"));
}

TEST_F(ForeignParametersTest, AreNotUsed) {
  const auto named = AllOf(HasSubstr("rank 1: parameter block.weight lives on rank 2"),
                           HasSubstr("Call the module that holds it"));
  EXPECT_THAT(refusal([&] { weight_ + 1; }), AllOf(named, HasSubstr("(aten::add)")));
  EXPECT_THAT(refusal([&] { at::cat({at::ones({1, 8}), weight_}); }), named);
  EXPECT_THAT(refusal([&] { at::ones({32, 8}).index({weight_}); }), named);
  EXPECT_THAT(refusal([&] { weight_.detach(); }), named);
}

TEST_F(ForeignParametersTest, AreNotWritten) {
  const at::NoGradGuard no_grad;
  const auto named = AllOf(HasSubstr("rank 1: parameter block.weight lives on rank 2"),
                           HasSubstr("guard with model.owns(tensor)"));
  EXPECT_THAT(refusal([&] { weight_.zero_(); }), AllOf(named, HasSubstr("(aten::zero_)")));
  EXPECT_THAT(refusal([&] { weight_.copy_(at::ones({8})); }), named);
  EXPECT_THAT(refusal([&] { weight_.set_data(at::ones({32, 8})); }), HasSubstr("block.weight"));
}

TEST_F(ForeignParametersTest, GiveNobodyTheirAddress) {
  EXPECT_THAT(refusal<c10::Error>([&] { static_cast<void>(weight_.data_ptr()); }),
              HasSubstr("parameter block.weight lives on rank 2"));
  EXPECT_THAT(refusal<c10::Error>([&] { static_cast<void>(weight_.storage()); }),
              HasSubstr("parameter block.weight lives on rank 2"));
}

TEST_F(ForeignParametersTest, SayTheSameOfTheirShallowCopies) {
  EXPECT_THAT(refusal([&] { weight_.variable_data().sum(); }), HasSubstr("block.weight"));
}

TEST_F(ForeignParametersTest, MayBeFrozenAndAsked) {
  weight_.set_requires_grad(false);
  EXPECT_FALSE(weight_.requires_grad());
  weight_.requires_grad_();
  EXPECT_TRUE(weight_.requires_grad());
  EXPECT_FALSE(weight_.grad().defined());
  weight_.mutable_grad() = at::Tensor();
}

TEST_F(ForeignParametersTest, HaveNoGradientOfEarlierTimes) {
  auto other = at::ones({4}).requires_grad_();
  other.mutable_grad() = at::ones({4});
  foreign_.shrink("block.bias", other, GlobalRank(2));
  EXPECT_FALSE(other.grad().defined());
}

TEST_F(ForeignParametersTest, TakeNoGradient) {
  EXPECT_THAT(refusal([&] { foreign_.refuse_gradient(weight_); }),
              AllOf(HasSubstr("rank 1"), HasSubstr("block.weight"), HasSubstr("rank 2")));
  foreign_.refuse_gradient(at::ones({2}));
}

TEST_F(ForeignParametersTest, AreDense) {
  const auto sparse = at::eye(3).to_sparse();
  EXPECT_THAT(
      refusal<UnsupportedError>([&] { foreign_.shrink("graph.edges", sparse, GlobalRank(2)); }),
      HasSubstr("graph.edges is sparse"));
}

}  // namespace
}  // namespace smp::server
