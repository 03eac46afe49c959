// Equal values have equal hashes, whatever their layout and the bits of their NaNs.
#include "d2d/tensors/value_hash.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace smp::d2d {
namespace value_hash_test {

TEST(ValueHash, DoesNotDependOnTheLayout) {
  const auto values = at::rand({5, 7});
  const auto hash = value_hash(values);
  EXPECT_EQ(value_hash(values.t().contiguous().t()), hash);
  EXPECT_EQ(value_hash(at::cat({at::zeros({1, 7}), values}).slice(0, 1)), hash);
  EXPECT_NE(value_hash(values.t()), hash);
  const auto complex = at::complex(values, -values);
  EXPECT_EQ(value_hash(complex.conj()), value_hash(complex.conj().resolve_conj().clone()));
  EXPECT_NE(value_hash(complex.conj()), value_hash(complex));
  EXPECT_EQ(value_hash(at::rand({1, 3}).expand({2, 3}).mul(0)), value_hash(at::zeros({2, 3})));
}

TEST(ValueHash, SeesEveryElement) {
  for (const auto type : {at::kFloat, at::kHalf, at::kInt, at::kBool, at::kFloat8_e4m3fn}) {
    std::set<std::uint64_t> hashes;
    for (int i = 0; i < 20; ++i) {
      auto values = at::zeros({20});
      values[i] = 1;
      hashes.insert(value_hash(values.to(type)));
    }
    EXPECT_EQ(hashes.size(), 20u) << type;
  }
  EXPECT_NE(value_hash(at::tensor({0.})), value_hash(at::tensor({-0.})));
  EXPECT_EQ(value_hash(at::empty({0, 3})), value_hash(at::empty({4, 0})));
}

/// All bit patterns of each type: those that are NaNs have one hash, all others their own.
TEST(ValueHash, TakesAllNaNsForOne) {
  for (const auto type : {at::kHalf, at::kBFloat16, at::kFloat8_e4m3fn, at::kFloat8_e5m2,
                          at::kFloat8_e8m0fnu, at::kFloat8_e4m3fnuz, at::kFloat8_e5m2fnuz}) {
    const bool small = c10::elementSize(type) == 1;
    const auto bits = small ? at::arange(256, at::kInt).to(at::kByte)
                            : at::arange(1 << 16, at::kInt).sub(1 << 15).to(at::kShort);
    const auto values = bits.view(type);
    const auto nan = values.to(at::kFloat).isnan();
    std::set<std::uint64_t> of_nans, of_numbers;
    for (std::int64_t i = 0; i < values.numel(); i += small ? 1 : 7) {
      (nan[i].item<bool>() ? of_nans : of_numbers).insert(value_hash(values.slice(0, i, i + 1)));
    }
    const auto numbers = small ? nan.logical_not().sum().item<std::int64_t>()
                               : nan.slice(0, 0, {}, 7).logical_not().sum().item<std::int64_t>();
    EXPECT_EQ(of_nans.size(), 1u) << type;
    EXPECT_EQ(of_numbers.size(), static_cast<std::size_t>(numbers)) << type;
  }
  for (const auto& [type, bits] : {std::pair(at::kFloat, at::kInt), {at::kDouble, at::kLong}}) {
    auto values = at::tensor({1., NAN, 2.}).to(type);
    auto others = values.clone();
    others.view(bits)[1].bitwise_or_(5);  // payload
    others[1].neg_();                     // sign
    ASSERT_TRUE(others[1].isnan().item<bool>());
    EXPECT_EQ(value_hash(values), value_hash(others));
    EXPECT_EQ(value_hash(at::complex(values, others)), value_hash(at::complex(others, values)));
    EXPECT_NE(value_hash(values), value_hash(at::tensor({NAN, 1., 2.}).to(type)));
  }
}

}  // namespace value_hash_test
}  // namespace smp::d2d
