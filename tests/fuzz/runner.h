// fuzz/runner.h: runs a program with plain LibTorch, and with this library.
#pragma once

#include <torch/types.h>

#include <map>
#include <string>
#include <vector>

#include "fuzz/program.h"

namespace smp::fuzz {

constexpr int kPlacing = -1;  ///< where an error before the first step happened

/// What one rank, or the reference, saw.
struct Trace {
  /// "step 1 loss", "step 0 gradient of 0.m1.weight", ...
  std::map<std::string, torch::Tensor> values;
  std::string error;
  int failed_at = -2;     ///< step, kPlacing, or -2: nowhere
  std::string aftermath;  ///< what the session said after the failure
  int replayed = 0;       ///< steps without control messages; rank 0 knows
  int ahead = 0;          ///< calls of this rank that were computed again while it would idle
};

/// In one process, without this library.
Trace run_reference(const Program& program);
/// One each rank. @throws what the session as a whole throws
std::vector<Trace> run_ranks(const Program& program);

}  // namespace smp::fuzz
