#include "precision/stochastic_rounding.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <set>
#include <vector>

#include "precision/random_bits.h"
#include "precision/rounding_on_device.h"

namespace smp::precision {
namespace {

WholeIndex whole(const at::Tensor& tensor) { return {tensor.numel(), tensor.numel(), 0}; }

at::Tensor rounded(const at::Tensor& from, std::uint64_t key, const WholeIndex& part) {
  auto to = torch::empty(from.sizes(), torch::kBFloat16);
  round_stochastically(from, to, key, part);
  return to;
}
at::Tensor rounded(const at::Tensor& from, std::uint64_t key = 1) {
  return rounded(from, key, whole(from));
}

TEST(StochasticRounding, KeepsWhatBfloat16Has) {
  std::vector<float> all;
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto wide = bits << 16;
    float value;
    std::memcpy(&value, &wide, sizeof(value));
    all.push_back(value);
  }
  const auto from = torch::tensor(all);
  for (std::uint64_t key = 0; key < 16; ++key) {
    const auto to = rounded(from, key);
    const auto same = to.view(torch::kShort) == from.to(torch::kBFloat16).view(torch::kShort);
    EXPECT_TRUE(same.logical_or(from.isnan()).all().item<bool>());
    EXPECT_TRUE(torch::equal(to.isnan(), from.isnan()));
  }
}

TEST(StochasticRounding, IsOneOfBothNeighboursInEveryRange) {
  torch::manual_seed(1);
  const auto exponents = torch::randint(0, 255, {4096}, torch::kInt) * (1 << 23);
  const auto mantissas = torch::randint(0, 1 << 23, {4096}, torch::kInt);
  for (const int sign : {0, 1}) {
    auto from = (exponents + mantissas).view(torch::kFloat);
    if (sign == 1) from = -from;
    const auto low = (from.view(torch::kInt).bitwise_and(-65536)).view(torch::kFloat);
    const auto to = rounded(from.contiguous());
    // Towards zero, or the next bfloat16 away from it, but for the largest.
    auto high = (low.view(torch::kInt) + 65536).view(torch::kFloat);
    high = torch::where(high.isfinite(), high, low);
    const auto wide = to.to(torch::kFloat);
    EXPECT_TRUE((wide == low).logical_or(wide == high).all().item<bool>());
    EXPECT_TRUE(to.isfinite().all().item<bool>());
  }
}

TEST(StochasticRounding, LeavesInfinitiesNansAndTheLargest) {
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float most = std::numeric_limits<float>::max();
  const auto from = torch::tensor({inf, -inf, nan, most, -most, 0.0f, -0.0f});
  for (std::uint64_t key = 0; key < 64; ++key) {
    const auto to = rounded(from, key).to(torch::kFloat);
    EXPECT_EQ(to[0].item<float>(), inf);
    EXPECT_EQ(to[1].item<float>(), -inf);
    EXPECT_TRUE(std::isnan(to[2].item<float>()));
    EXPECT_TRUE(std::isfinite(to[3].item<float>()) && to[3].item<float>() > 3.38e38f);
    EXPECT_EQ(to[4].item<float>(), -to[3].item<float>());
    EXPECT_TRUE(std::signbit(to[6].item<float>()));
  }
}

/// A signalling NaN whose payload lies in the bits that are cut off stays a NaN.
TEST(StochasticRounding, CutsNoNanToInfinity) {
  const auto from = torch::full({1}, 0x7F800001, torch::kInt).view(torch::kFloat);
  EXPECT_TRUE(rounded(from).isnan().item<bool>());
}

/// Of n roundings of one value the mean is that value: within 4 standard errors, in ranges from
/// denormals to large numbers.
TEST(StochasticRounding, IsUnbiased) {
  constexpr std::int64_t kCount = 1 << 20;
  for (const float value :
       {1.0f + 1.0f / 1024, -3.1415927f, 1e-40f, -7e-39f, 6.1e-5f, 3.3e38f, 0.3f}) {
    const auto from = torch::full({kCount}, value);
    const auto to = rounded(from, 7).to(torch::kDouble);
    const double gap = (to.max() - to.min()).item<double>();
    const double low = to.min().item<double>();
    const double share = (value - low) / gap;
    const double error = gap * std::sqrt(share * (1 - share) / kCount);
    EXPECT_GT(gap, 0) << value;
    EXPECT_NEAR(to.mean().item<double>(), value, 4 * error) << value;
  }
}

/// How many values each statistic is of; SMP_ROUNDING_VALUES asks for others, say 100000000.
std::int64_t values() {
  const char* const wanted = std::getenv("SMP_ROUNDING_VALUES");
  return wanted == nullptr ? 1 << 20 : std::atoll(wanted);
}

/// Calls `action(count, first)` for pieces that fit into caches, which together are `all` values.
template <class Action>
void each_piece(std::int64_t all, Action&& action) {
  constexpr std::int64_t kPiece = 1 << 18;
  for (std::int64_t first = 0; first < all; first += kPiece) {
    action(std::min(kPiece, all - first), first);
  }
}

/// Returns how many of `all` roundings of the float32 `bits` go away from zero.
std::int64_t rounded_up(std::int32_t bits, std::int64_t all, std::uint64_t key) {
  const auto value = torch::full({1}, bits, torch::kInt).view(torch::kFloat);
  const auto down = static_cast<std::int16_t>(bits >> 16);
  std::int64_t up = 0;
  each_piece(all, [&](std::int64_t count, std::int64_t first) {
    const auto to = rounded(value.expand({count}).contiguous(), key, {count, all, first});
    up += (to.view(torch::kShort) != down).sum().item<std::int64_t>();
  });
  return up;
}

/// In every range of exponents, denormals and the last one among them, numbers of either sign go up
/// as often as is due, within 4 standard errors.
TEST(StochasticRounding, IsUnbiasedInEveryRangeOfExponents) {
  const auto all = values();
  torch::manual_seed(5);
  for (std::int32_t exponent = 0; exponent < 255; ++exponent) {
    const auto most = exponent == 254 ? 0x7F0000 : 1 << 23;  // beyond that nothing is finite
    const auto mantissa = torch::randint(1, most, {1}, torch::kInt).item<std::int32_t>();
    const auto sign = exponent % 2 == 0 ? 0u : 1u << 31;
    const auto bits = static_cast<std::int32_t>(sign | static_cast<std::uint32_t>(exponent) << 23 |
                                                static_cast<std::uint32_t>(mantissa));
    const double share = static_cast<double>(mantissa & 0xFFFF) / 65536;
    const double up = static_cast<double>(
        rounded_up(bits, all, rounding_key(1, static_cast<std::uint64_t>(exponent), "w")));
    const double error = std::sqrt(share * (1 - share) * static_cast<double>(all));
    EXPECT_NEAR(up, share * static_cast<double>(all), 4 * error) << "exponent " << exponent;
  }
}

/// Chi-square of the 16 random bits in 256 cells, by their upper and by their lower half.
TEST(StochasticRounding, DrawsEvenly) {
  const std::int64_t blocks = values() / kBlock;
  for (const int shift : {0, 8}) {
    std::vector<double> cells(256);
    for (std::int64_t block = 0; block < blocks; ++block) {
      for (const auto bits : random_bits(rounding_key(3, 5, "a.weight"), block)) {
        ++cells[bits >> shift & 0xFF];
      }
    }
    double chi = 0;
    const double expected = static_cast<double>(blocks * kBlock) / 256;
    for (const double count : cells) chi += (count - expected) * (count - expected) / expected;
    EXPECT_NEAR(chi, 255, 4.5 * std::sqrt(2 * 255));
  }
}

/// The random bits of elements `first` to `first + count - 1` under each of `keys`, a row each, as
/// numbers of mean 0 and variance 1.
at::Tensor streams(const std::vector<std::uint64_t>& keys, std::int64_t count, std::int64_t first) {
  std::vector<at::Tensor> rows;
  std::vector<std::uint32_t> bits(static_cast<std::size_t>(count));
  for (const auto key : keys) {
    for (std::int64_t begin = 0; begin < count; begin += kBlock) {
      std::ranges::copy(random_bits(key, (first + begin) / kBlock), bits.begin() + begin);
    }
    rows.push_back(torch::from_blob(bits.data(), {count}, torch::kInt).to(torch::kDouble));
  }
  const double middle = 65535.0 / 2, deviation = 65536 / std::sqrt(12.0);
  return (torch::stack(rows) - middle) / deviation;
}

/// Those of neighbouring steps, of like names and of other seeds, and neighbours within a stream:
/// no correlation, of some hundred, is beyond 4.5 standard errors.
TEST(StochasticRounding, StreamsAreUncorrelated) {
  std::vector<std::uint64_t> keys;
  for (const std::uint64_t seed : {0, 1}) {
    for (const char* name : {"0.a.weight", "0.a.bias", "0.b.weight"}) {
      for (const std::uint64_t step : {0, 1, 2, 256})
        keys.push_back(rounding_key(seed, step, name));
    }
  }
  const std::vector<std::int64_t> lags{1, 2, 8, 16, 32, 64, 128};
  const auto many = static_cast<std::int64_t>(keys.size());
  auto across = torch::zeros({many, many}, torch::kDouble);
  auto within = torch::zeros({static_cast<std::int64_t>(lags.size()), many}, torch::kDouble);
  const std::int64_t all = values() / kBlock * kBlock;
  each_piece(all, [&](std::int64_t count, std::int64_t first) {
    const auto rows = streams(keys, count, first);
    across += rows.mm(rows.t());
    for (std::size_t i = 0; i < lags.size(); ++i) {
      const auto rest = count - lags[i];
      within[static_cast<std::int64_t>(i)] +=
          (rows.narrow(1, 0, rest) * rows.narrow(1, lags[i], rest)).sum(1);
    }
  });
  const double most = 4.5 * std::sqrt(static_cast<double>(all));
  EXPECT_LT((across - across.diag().diag()).abs().max().item<double>(), most);
  EXPECT_NEAR(across.diag().mean().item<double>(), static_cast<double>(all), most);
  EXPECT_LT(within.abs().max().item<double>(), most);
}

TEST(StochasticRounding, DependsOnSeedStepAndName) {
  // Halfway between two bfloat16 numbers: up with probability 1/2, so that only the bits tell.
  const auto from = torch::full({4096}, 1.0f + 1.0f / 256);
  std::set<std::uint64_t> keys{rounding_key(0, 0, "a"), rounding_key(1, 0, "a"),
                               rounding_key(0, 1, "a"), rounding_key(0, 0, "b"),
                               rounding_key(1, 1, "a")};
  EXPECT_EQ(keys.size(), 5u);
  const auto up = [&](std::uint64_t key) {
    return (rounded(from, key).to(torch::kFloat).abs() > from.abs()).to(torch::kDouble);
  };
  const auto first = up(rounding_key(0, 0, "a"));
  for (const auto key : keys) {
    if (key == rounding_key(0, 0, "a")) continue;
    const auto other = up(key);
    const double correlation =
        ((first - first.mean()) * (other - other.mean())).mean().item<double>() /
        (first.std() * other.std()).item<double>();
    EXPECT_NEAR(correlation, 0, 4 / std::sqrt(4096.0));
  }
}

/// A slice along any axis gets the bits that its elements have in the whole tensor.
TEST(StochasticRounding, PartsGetTheBitsOfTheWhole) {
  torch::manual_seed(3);
  const auto from = torch::randn({6, 10, 7});
  const auto together = rounded(from, 9);
  for (std::int64_t axis = 0; axis < 3; ++axis) {
    std::int64_t inside = 1;
    for (std::int64_t i = axis + 1; i < 3; ++i) inside *= from.size(i);
    for (std::int64_t begin = 0; begin < from.size(axis); ++begin) {
      for (std::int64_t size = 1; begin + size <= from.size(axis); ++size) {
        const auto part = from.narrow(axis, begin, size).contiguous();
        const WholeIndex place{size * inside, from.size(axis) * inside, begin * inside};
        EXPECT_TRUE(torch::equal(rounded(part, 9, place), together.narrow(axis, begin, size)));
      }
    }
  }
}

TEST(StochasticRounding, DevicesGetTheSameBits) {
  torch::manual_seed(4);
  const auto from = torch::cat({torch::randn({501}) * 1e-39, torch::randn({499}),
                                torch::tensor({INFINITY, -INFINITY, NAN, 3.4e38f, -0.0f})});
  const WholeIndex part{67, 300, 1LL << 40};
  const auto even = from.narrow(0, 0, 15 * 67).contiguous();
  auto by_operators = torch::empty(even.sizes(), torch::kBFloat16);
  round_on_device(even, by_operators, rounding_key(1, 2, "w"), part);
  EXPECT_TRUE(torch::equal(by_operators.view(torch::kShort),
                           rounded(even, rounding_key(1, 2, "w"), part).view(torch::kShort)));
}

/// Steps far below the distance of two bfloat16 numbers: rounding to nearest stands still.
TEST(StochasticRounding, MovesWhereNearestStandsStill) {
  auto nearest = torch::ones({4096}).to(torch::kBFloat16);
  auto ours = nearest.clone();
  for (std::uint64_t step = 0; step < 1000; ++step) {
    nearest = (nearest.to(torch::kFloat) - 1e-4).to(torch::kBFloat16);
    ours = rounded(ours.to(torch::kFloat) - 1e-4, rounding_key(0, step, "w"));
  }
  EXPECT_EQ(nearest.to(torch::kFloat).mean().item<float>(), 1);
  EXPECT_NEAR(ours.to(torch::kFloat).mean().item<float>(), 0.9, 0.002);
}

}  // namespace
}  // namespace smp::precision
