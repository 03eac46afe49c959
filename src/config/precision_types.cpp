// config/precision_types.cpp: see the header.
#include "config/precision_types.h"

#include <algorithm>
#include <string>
#include <vector>

#include "base/check.h"

namespace smp::base {
namespace {

constexpr const char* kWide = "float32";

/// The type that one process computes in under autocast, by the device.
std::string autocast_type(const Config& config) {
  return config.device == "cpu" ? "bfloat16" : "float16";
}

}  // namespace

std::optional<ParameterType> parameter_type(const std::string& precision) {
  if (precision == "fp32") return ParameterType::kFloat;
  if (precision == "bf16" || precision == "bf16_sr") return ParameterType::kBFloat16;
  if (precision == "fp16") return ParameterType::kHalf;
  return std::nullopt;
}

std::vector<PrecisionRow> precision_rows(const Config& config) {
  if (config.precision.empty()) return {};
  const bool autocast = config.precision == "amp";
  const auto stored = parameter_type(config.precision).value_or(ParameterType::kFloat);
  const bool wide = stored == ParameterType::kFloat;
  const std::string type = wide                                 ? kWide
                           : stored == ParameterType::kBFloat16 ? "bfloat16"
                                                                : "float16";
  const double bytes = wide ? 4 : 2;
  const auto computed = autocast ? autocast_type(config) : type;
  const bool summed_wide = !wide && config.fp32_grad_accumulation;
  std::vector<PrecisionRow> rows;
  rows.push_back({"parameters", type, bytes});
  rows.push_back({"buffers", "as the program makes them", 0});
  rows.push_back({autocast ? "matrix products, by autocast" : "computed in", computed, 0});
  rows.push_back({"activations, and their gradients, sent", computed, 0});
  rows.push_back({"gradients (.grad)", type, bytes});
  if (autocast && config.microbatches > 1) {  // until the step ends, beside all gradients
    rows.push_back({"weights of products, cast, in a step", computed, 2});
  }
  if (stored == ParameterType::kHalf && !(summed_wide && config.microbatches > 1)) {
    rows.push_back({"gradients once unscaled, 2 bytes more", kWide, 2});
  }
  if (config.microbatches > 1) {
    rows.push_back({"sums of microbatches' gradients, in a step", summed_wide ? kWide : type,
                    summed_wide ? 4.0 : 0.0});
  }
  rows.push_back({"gradients of replicas, sent", type, 0});
  rows.push_back({"gradients of replicas, summed", kWide, 0});
  if (config.master_weights && !wide) rows.push_back({"masters in the optimizer", kWide, 4});
  rows.push_back({"optimizer's state (of Adam)", kWide, 8});
  rows.push_back({"norms and metrics, summed", kWide, 0});
  return rows;
}

std::string precision_table(const Config& config) {
  const auto rows = precision_rows(config);
  if (rows.empty()) return {};
  std::size_t what = 0, type = 0;
  double sum = 0;
  for (const auto& row : rows) {
    what = std::max(what, row.what.size());
    type = std::max(type, row.type.size());
    sum += row.bytes;
  }
  auto text = concat("numbers of precision = ", config.precision, ", and bytes a parameter\n");
  const auto padded = [](const std::string& word, std::size_t width) {
    return word + std::string(width - word.size() + 2, ' ');
  };
  for (const auto& row : rows) {
    text += concat("  ", padded(row.what, what), padded(row.type, type),
                   row.bytes > 0 ? concat(row.bytes) : "", "\n");
  }
  return text + concat("  ", padded("together", what), padded("", type), sum, "\n");
}

}  // namespace smp::base
