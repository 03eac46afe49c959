// Every zoo model in every precision, on 1 to 8 ranks of one process, against one process of plain
// LibTorch that does the same arithmetic.
#include <gmock/gmock.h>

#include <cstddef>
#include <vector>

#include "zoo/precision.h"

namespace smp::zoo {
namespace precision_zoo_test {

class PrecisionZoo : public testing::TestWithParam<std::size_t> {};

/// Of chains, branches and values. Models that draw random numbers have no such process, and
/// LibTorch adds up rows that are looked up in 16 bits.
std::vector<std::size_t> models() {
  constexpr std::size_t kFirst = 12;
  std::vector<std::size_t> numbers;
  for (std::size_t i = 0; i < kFirst; ++i) {
    if (!all_cases()[i].random) numbers.push_back(i);
  }
  return numbers;
}

TEST_P(PrecisionZoo, EqualsOneProcess) { expect_one_process_in_16_bits(all_cases()[GetParam()]); }

INSTANTIATE_TEST_SUITE_P(Models, PrecisionZoo, testing::ValuesIn(models()));

}  // namespace precision_zoo_test
}  // namespace smp::zoo
