// A T5 of eleven billion parameters can be built anywhere, as far as its placement.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <torch/types.h>

#include <ctime>

#include "smp/delayed_init.h"
#include "t5/t5.h"

namespace t5 {
namespace {

long peak_megabytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss / 1024;
}

TEST(T5Size, ElevenBillionParametersTakeNoMemoryBeforePlacement) {
  const auto before = peak_megabytes();
  const auto start = std::clock();
  torch::manual_seed(1);
  const smp::delay_param_initialization delay;
  T5 net(T5Config::preset("11b"));
  std::int64_t parameters = 0;
  for (const auto& parameter : net->parameters()) parameters += parameter.numel();
  EXPECT_GT(parameters, 11'000'000'000);
  EXPECT_LT(peak_megabytes() - before, 100);
  RecordProperty("cpu_seconds", static_cast<int>((std::clock() - start) / CLOCKS_PER_SEC));
}

}  // namespace
}  // namespace t5
