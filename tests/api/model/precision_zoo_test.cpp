// Every zoo model in every precision, on 1 to 8 ranks of one process, against one process of plain
// LibTorch that does the same arithmetic.
#include <gmock/gmock.h>

#include "zoo/precision.h"

namespace smp::zoo {
namespace precision_zoo_test {

class PrecisionZoo : public testing::TestWithParam<std::size_t> {};

constexpr std::size_t kModels = 12;  // chains, branches, values

/// Models that draw random numbers have no such process, and LibTorch adds up rows that are looked
/// up in 16 bits.
TEST_P(PrecisionZoo, EqualsOneProcess) {
  const auto c = all_cases()[GetParam()];
  if (!c.random) expect_one_process_in_16_bits(c);
}

INSTANTIATE_TEST_SUITE_P(Models, PrecisionZoo, testing::Range<std::size_t>(0, kModels));

}  // namespace precision_zoo_test
}  // namespace smp::zoo
