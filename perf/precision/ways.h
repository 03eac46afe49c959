// perf/precision/ways.h: the ways to keep parameters that perf/precision.cpp compares.
#pragma once

#include <c10/core/ScalarType.h>

#include <string>

#include "smp/config.h"

namespace smp::perf::precision_program {

/// One way to keep parameters.
struct Way {
  const char* name;
  const char* precision;  ///< the setting; "": the program casts
  c10::ScalarType type;
};

inline constexpr Way kFp32{"fp32", "fp32", c10::kFloat};
inline constexpr Way kAmp{"amp", "amp", c10::kFloat};
inline constexpr Way kPlain{"bf16_plain", "", c10::kBFloat16};
inline constexpr Way kByChance{"bf16_sr", "bf16_sr", c10::kBFloat16};
inline constexpr Way kMasters{"master", "bf16", c10::kBFloat16};

inline Config config_of(const Way& way, int microbatches) {
  Config config;
  config.microbatches = microbatches;
  config.plan_cache = "off";
  config.skip_tracing = true;
  config.precision = way.precision;
  return config;
}

}  // namespace smp::perf::precision_program
