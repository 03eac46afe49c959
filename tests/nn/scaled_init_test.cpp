#include "smp/nn/scaled_init.h"

#include <gtest/gtest.h>

#include "smp/error.h"

namespace smp::nn {
namespace {

TEST(ScaledInit, DividesByItsRoot) {
  EXPECT_DOUBLE_EQ(output_deviation(0.02, OutputScale::kNone, 3, 8), 0.02);
  EXPECT_DOUBLE_EQ(output_deviation(0.02, OutputScale::kTwoLayers, 0, 8), 0.005);
  EXPECT_DOUBLE_EQ(output_deviation(0.02, OutputScale::kTwoLayers, 7, 8), 0.005);
  EXPECT_DOUBLE_EQ(output_deviation(0.02, OutputScale::kLayerIndex, 0, 8), 0.02);
  EXPECT_DOUBLE_EQ(output_deviation(0.02, OutputScale::kLayerIndex, 3, 8), 0.01);
}

TEST(ScaledInit, RefusesALayerThatIsNotThere) {
  EXPECT_THROW(output_deviation(0.02, OutputScale::kNone, 8, 8), UsageError);
  EXPECT_THROW(output_deviation(0.02, OutputScale::kNone, -1, 8), UsageError);
}

}  // namespace
}  // namespace smp::nn
