// nn/scaled_init.cpp: see smp/nn/scaled_init.h.
#include "smp/nn/scaled_init.h"

#include <cmath>

#include "base/check.h"

namespace smp::nn {

double output_deviation(double deviation, OutputScale scale, std::int64_t layer,
                        std::int64_t layers) {
  SMP_REQUIRE(layer >= 0 && layer < layers, "output_deviation: layer ", layer, " is not among the ",
              layers, " layers, which are counted from 0");
  switch (scale) {
    case OutputScale::kNone:
      return deviation;
    case OutputScale::kTwoLayers:
      return deviation / std::sqrt(2.0 * static_cast<double>(layers));
    case OutputScale::kLayerIndex:
      return deviation / std::sqrt(static_cast<double>(layer + 1));
  }
  throw UsageError("output_deviation: the scale is none of OutputScale");
}

}  // namespace smp::nn
