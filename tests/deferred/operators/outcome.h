// deferred/operators/outcome.h: what a run of an operator leaves behind, as text that can be
// compared.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdint>
#include <string>
#include <vector>

#include "deferred/operators/arguments.h"

namespace smp::deferred {

/// Everything that a program could see of an operator's arguments and results, one line each.
struct Outcome {
  std::vector<std::string> lines;
  bool put_off = false;  ///< some result had no values yet
};

/// Runs `op` as a program would that knows nothing of this library.
Outcome run_ordinarily(const c10::OperatorHandle& op, std::uint64_t seed,
                       const ArgumentKinds& kinds);
/// Runs it, and what makes its arguments, in a smp::delay_param_initialization; then all tensors
/// get their values.
Outcome run_delayed(const c10::OperatorHandle& op, std::uint64_t seed, const ArgumentKinds& kinds);
/// Runs it on shapes alone.
Outcome run_on_shapes(const c10::OperatorHandle& op, std::uint64_t seed,
                      const ArgumentKinds& kinds);
/// Keeps of the lines of an ordinary run what a run on shapes should tell as well.
std::vector<std::string> shapes_of(const Outcome& ordinary);

/// Returns the first lines in which two outcomes differ, or "".
std::string difference(const std::vector<std::string>& expected,
                       const std::vector<std::string>& seen);

}  // namespace smp::deferred
