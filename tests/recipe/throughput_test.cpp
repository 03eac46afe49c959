// Rates and prices.
#include "smp/recipe/throughput.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "smp/recipe/gemm_ceiling.h"
#include "support/refusal.h"

namespace smp {
namespace {

using testing::HasSubstr;

/// 1,024 sequences of 4,096 tokens a step, on 32 machines of 21.5 an hour.
ThroughputOptions trainium() {
  return {.sequence_length = 4096,
          .sequences_per_step = 1024,
          .flops_per_sequence = 2e14,
          .peak_flops = 1e17,
          .instances = 32,
          .price_per_hour = 21.5};
}

TEST(Throughput, HasTheFormulasOfThePaper) {
  const auto rates = throughput(trainium(), 10, 100);  // 10 s a step
  EXPECT_DOUBLE_EQ(rates.sequences_per_second, 102.4);
  EXPECT_DOUBLE_EQ(rates.tokens_per_second, 102.4 * 4096);
  EXPECT_DOUBLE_EQ(rates.flops_per_second, 2.048e16);
  EXPECT_DOUBLE_EQ(rates.mfu, 0.2048);
  EXPECT_DOUBLE_EQ(rates.mfpi, 6.4e14);
  // A step is 4,194,304 tokens, so its price is that of 10 s of 32 machines.
  EXPECT_DOUBLE_EQ(rates.cost_per_4m_tokens, 32 * 21.5 * 10 / 3600);
}

TEST(Throughput, KnowsNoShareOfAnUnknownPeak) {
  auto options = trainium();
  options.peak_flops = 0;
  options.price_per_hour = 0;
  const auto rates = throughput(options, 1, 1);
  EXPECT_EQ(rates.mfu, 0);
  EXPECT_EQ(rates.cost_per_4m_tokens, 0);
}

TEST(ThroughputMeter, LeavesTheFirstStepsOutOfTheMean) {
  ThroughputMeter meter(trainium(), 2);
  EXPECT_EQ(meter.mean().tokens_per_second, 0);
  meter.step(50);
  EXPECT_DOUBLE_EQ(meter.mean().sequences_per_second, 1024.0 / 50);
  meter.step(30);
  EXPECT_DOUBLE_EQ(meter.step(10).sequences_per_second, 102.4);
  meter.step(6);
  EXPECT_DOUBLE_EQ(meter.mean().sequences_per_second, 2 * 1024.0 / 16);
}

TEST(ThroughputMeter, RefusesNonsense) {
  EXPECT_THAT(refusal([] { ThroughputMeter meter({}); }), HasSubstr("0 sequences"));
  auto options = trainium();
  options.price_per_hour = -1;
  EXPECT_THAT(refusal([&] { ThroughputMeter meter(options); }), HasSubstr("negative"));
  ThroughputMeter meter(trainium());
  EXPECT_THAT(refusal([&] { meter.step(0); }), HasSubstr("above 0"));
}

/// More than a machine of the last twenty years could not do, and less than one of the next could.
TEST(GemmCeiling, IsAbovePlainCodeAndBelowAnyMachine) {
  const auto reached = measured_gemm_flops({.size = 128, .seconds = 0.02});
  EXPECT_GT(reached, 1e8);
  EXPECT_LT(reached, 1e16);
  EXPECT_THAT(refusal([] { measured_gemm_flops({.size = 0}); }), HasSubstr("size 0"));
}

}  // namespace
}  // namespace smp
