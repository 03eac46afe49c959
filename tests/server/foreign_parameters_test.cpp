// Parameters of other ranks: their memory is freed, their identity stays, and misuse is named.
#include "server/foreign_parameters.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>

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

TEST_F(ForeignParametersTest, KeepIdentityAndShapeButNoValues) {
  EXPECT_EQ(weight_.unsafeGetTensorImpl(), identity_);
  EXPECT_EQ(weight_.sizes(), at::IntArrayRef({32, 8}));
  EXPECT_TRUE(weight_.requires_grad());
  EXPECT_TRUE(weight_.is_leaf());
  EXPECT_TRUE(weight_.isnan().all().item<bool>());
  EXPECT_EQ(weight_.storage().nbytes(), sizeof(float));
  EXPECT_EQ(foreign_.freed_bytes(), 32 * 8 * sizeof(float));
}

TEST_F(ForeignParametersTest, OfIntegersBecomeZero) {
  auto count = at::full({3}, 7, at::kLong);
  foreign_.shrink("norm.count", count, GlobalRank(2));
  EXPECT_TRUE(at::equal(count, at::zeros({3}, at::kLong)));
  EXPECT_EQ(foreign_.size(), 2u);
}

TEST_F(ForeignParametersTest, AreShrunkOnce) {
  foreign_.shrink("tied.weight", weight_, GlobalRank(3));
  EXPECT_EQ(foreign_.size(), 1u);
}

TEST_F(ForeignParametersTest, TakeNoGradient) {
  EXPECT_THAT(refusal([&] { foreign_.refuse_gradient(weight_); }),
              AllOf(HasSubstr("rank 1"), HasSubstr("block.weight"), HasSubstr("rank 2"),
                    HasSubstr("Call the module")));
  foreign_.refuse_gradient(at::ones({2}));
}

TEST_F(ForeignParametersTest, MayBeUsedWithoutBeingWritten) {
  weight_.set_requires_grad(false);
  weight_.mutable_grad() = at::Tensor();
  foreign_.check_untouched("now");
}

TEST_F(ForeignParametersTest, AreNotWritten) {
  const at::NoGradGuard no_grad;
  weight_.zero_();
  EXPECT_THAT(refusal([&] { foreign_.check_untouched("between two steps"); }),
              AllOf(HasSubstr("between two steps"), HasSubstr("block.weight was written"),
                    HasSubstr("lives on rank 2")));
}

TEST_F(ForeignParametersTest, AreNotMaterialised) {
  weight_.set_data(at::ones({32, 8}));
  EXPECT_THAT(refusal([&] { foreign_.check_untouched("now"); }), HasSubstr("block.weight"));
}

}  // namespace
}  // namespace smp::server
