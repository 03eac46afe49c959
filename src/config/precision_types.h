// config/precision_types.h: what a precision stores, computes, sums and sends in which type.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "smp/config.h"

namespace smp::base {

enum class ParameterType { kFloat, kBFloat16, kHalf };

/// The type that parameters are cast to; nothing: they stay as the program makes them.
std::optional<ParameterType> parameter_type(const std::string& precision);

/// One kind of numbers under a configuration.
struct PrecisionRow {
  std::string what;  ///< "gradients of replicas, summed"
  std::string type;  ///< "float32"
  double bytes;      ///< that it takes for each parameter; 0: it depends on the model
};

/// What numbers there are, with the types that LibTorch has them in: of the models' parameters to
/// those of a message. Adam's state stands for an optimizer's. Empty without a precision, since
/// then the program decides.
std::vector<PrecisionRow> precision_rows(const Config& config);

/// The rows as lines of a table, with a sum of the bytes; empty if there are none.
std::string precision_table(const Config& config);

}  // namespace smp::base
