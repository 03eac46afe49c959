// Values that come last and stand where they were loaded: before what was done to the tensor later.
#include "deferred/later_values.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "deferred/delayed_build.h"
#include "support/refusal.h"

namespace smp::deferred {
namespace later_values_test {

LaterValues load(const Tensor& target, torch::Dtype type = torch::kFloat) {
  LaterValues values(target, type);
  torch::NoGradGuard no_grad;
  target.detach().copy_(values.take_stand_in());
  return values;
}

struct Linear {
  std::shared_ptr<nn::LinearImpl> net = build_delayed([] { return nn::Linear(3, 2); }).ptr();
  Tensor& weight() { return net->weight; }
};

TEST(LaterValues, ComeBeforeWhatIsDoneLater) {
  Linear own;
  torch::NoGradGuard no_grad;
  own.weight().fill_(5);
  const auto values = load(own.weight(), torch::kInt);
  own.weight().mul_(2);
  own.weight()[1].fill_(-1);
  EXPECT_TRUE(values.needed());
  values.give(torch::arange(6, torch::kInt).reshape({2, 3}));
  materialise(*own.net);
  EXPECT_TRUE(torch::equal(own.weight(), torch::tensor({{0.f, 2.f, 4.f}, {-1.f, -1.f, -1.f}})));
  EXPECT_FALSE(values.needed());
}

TEST(LaterValues, AreNotNeededWhereTheyAreOverwrittenOrFreed) {
  Linear own;
  torch::NoGradGuard no_grad;
  const auto first = load(own.weight());
  const auto second = load(own.weight());
  EXPECT_FALSE(first.needed());
  EXPECT_TRUE(second.needed());
  const auto twice = own.weight() * 2;  // needs them too
  own.weight().zero_();
  EXPECT_TRUE(second.needed());
  second.give(torch::ones({2, 3}));
  materialise(*own.net);
  EXPECT_TRUE(torch::equal(twice + 0, torch::full({2, 3}, 2.f)));
  EXPECT_TRUE(torch::equal(own.weight(), torch::zeros({2, 3})));
}

TEST(LaterValues, AreNotWrittenByTheRecipesThatReadThem) {
  Linear own;
  torch::NoGradGuard no_grad;
  const auto values = load(own.weight());
  const auto copy = own.weight().clone();
  own.weight().add_(1);
  const auto given = torch::arange(6, torch::kFloat).reshape({2, 3});
  values.give(given.t().contiguous().t());
  materialise(*own.net);
  EXPECT_TRUE(torch::equal(own.weight(), given + 1));
  EXPECT_TRUE(torch::equal(copy + 0, given));
  EXPECT_TRUE(torch::equal(given, torch::arange(6, torch::kFloat).reshape({2, 3})));
}

TEST(LaterValues, FillTheirTargetAsSoonAsNothingIsMissing) {
  Linear own;
  torch::NoGradGuard no_grad;
  const auto whole = load(own.weight());
  LaterValues row(own.weight()[0], torch::kFloat);
  own.weight()[0].copy_(row.take_stand_in());
  Materialiser().announce("weight", own.weight());
  whole.give(torch::ones({2, 3}));
  whole.fill_target();
  EXPECT_TRUE(is_delayed(own.weight()));
  EXPECT_NE(
      refusal([&] { Materialiser().fill(own.weight()); }).find("into which others were loaded"),
      std::string::npos);
  row.give(torch::full({3}, 4.f));
  whole.fill_target();
  EXPECT_FALSE(is_delayed(own.weight()));
  EXPECT_TRUE(torch::equal(own.weight(), torch::tensor({{4.f, 4.f, 4.f}, {1.f, 1.f, 1.f}})));
}

/// A part of another tensor, conjugated, of no elements.
TEST(LaterValues, MayBeAnyTensor) {
  torch::NoGradGuard no_grad;
  const auto made = build_delayed([] {
    return std::vector<Tensor>{torch::zeros({2}, torch::kComplexFloat), torch::zeros({0, 3}),
                               torch::zeros({2})};
  });
  const auto complex = load(made[0], torch::kComplexFloat);
  const auto nothing = load(made[1]);
  const auto part = load(made[2], torch::kBFloat16);
  Materialiser materialiser;
  for (const auto& tensor : made) materialiser.announce("", tensor);
  const auto value = torch::complex(torch::ones({2}), torch::ones({2}));
  complex.give(value.conj());
  nothing.give(torch::ones({0, 3}));
  part.give(torch::arange(8, torch::kBFloat16).slice(0, 3, 8, 3));
  for (const auto& tensor : made) materialiser.fill(tensor);
  EXPECT_TRUE(torch::equal(made[0], value.conj().resolve_conj()));
  EXPECT_EQ(made[1].sizes(), at::IntArrayRef({0, 3}));
  EXPECT_TRUE(torch::equal(made[2], torch::tensor({3.f, 6.f})));
}

}  // namespace later_values_test
}  // namespace smp::deferred
