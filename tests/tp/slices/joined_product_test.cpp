// One product of several weights equals one product for each, also where some need no gradient, and
// under autocast.
#include "tp/slices/joined_product.h"

#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <torch/torch.h>

#include "nn/weight_casts.h"
#include "support/weight_casts.h"
#include "tp/layer_comparison.h"

namespace smp::tp {
namespace joined_product_test {

struct Inputs {
  explicit Inputs(at::ScalarType dtype = at::kDouble)
      : x(numbers(1, {2, 3, 4})[0].to(dtype)),
        weights{numbers(1, {5, 4})[0].to(dtype), numbers(2, {2, 4})[1].to(dtype)},
        bias(numbers(1, {7})[0].to(dtype)) {}
  std::vector<at::Tensor> all() const { return {x, weights[0], weights[1], bias}; }
  at::Tensor x;
  std::vector<at::Tensor> weights;
  at::Tensor bias;
};

at::Tensor apart(const Inputs& in, bool biased) {
  const auto sums = at::cat({at::linear(in.x, in.weights[0]), at::linear(in.x, in.weights[1])}, -1);
  return biased ? sums + in.bias : sums;
}

TEST(JoinedProduct, EqualsOneProductForEachWeight) {
  for (const bool biased : {false, true}) {
    for (int frozen = 0; frozen < 16; ++frozen) {
      const Inputs ours, reference;
      for (std::size_t i = 0; i < 4; ++i) {
        const bool learns = ((frozen >> i) & 1) == 0;
        ours.all()[i].set_requires_grad(learns);
        reference.all()[i].set_requires_grad(learns);
      }
      const auto joined = joined_product(ours.x, ours.weights, biased ? ours.bias : at::Tensor());
      const auto expected = apart(reference, biased);
      expect_near(joined.detach(), expected.detach(), 1e-15, "product");
      ASSERT_EQ(joined.requires_grad(), expected.requires_grad());
      if (!joined.requires_grad()) continue;
      joined.backward(weights_like(joined, 1));
      expected.backward(weights_like(expected, 1));
      for (std::size_t i = 0; i < 4; ++i) {
        expect_near(ours.all()[i].grad(), reference.all()[i].grad(), 1e-14, "gradient");
      }
    }
  }
}

TEST(JoinedProduct, IsOf16BitsUnderAutocast) {
  const Inputs ours(at::kFloat);
  for (const auto& tensor : ours.all()) tensor.set_requires_grad(true);
  at::autocast::set_autocast_enabled(at::kCPU, true);
  const auto joined = joined_product(ours.x, ours.weights, ours.bias);
  at::autocast::set_autocast_enabled(at::kCPU, false);
  at::autocast::clear_cache();
  EXPECT_EQ(joined.scalar_type(), at::kBFloat16);
  joined.sum().backward();
  for (const auto& tensor : ours.all()) EXPECT_EQ(tensor.grad().scalar_type(), at::kFloat);
}

TEST(JoinedProduct, CastsEachWeightOnceUnderAutocast) {
  constexpr std::int64_t kSize = 29;  // of weights, and of nothing else
  const auto weight = [](bool learns) {
    return torch::randn({kSize, kSize}).set_requires_grad(learns);
  };
  const std::vector<at::Tensor> weights{weight(true), weight(false), weight(true)};
  const auto x = torch::randn({2, kSize});
  const nn::WeightCastsScope kept;
  at::autocast::set_autocast_enabled(at::kCPU, true);
  {
    const support::WeightCasts casts(kSize);
    const auto first = joined_product(x, weights, {});
    EXPECT_TRUE(at::equal(joined_product(x, weights, {}), first));
    EXPECT_EQ(casts.count(), 3);
  }
  at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(at::kCPU, false);
}

}  // namespace joined_product_test
}  // namespace smp::tp
