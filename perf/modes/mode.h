// perf/modes/mode.h: the modes that perf/modes.cpp compares, and what its parts share.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>

#include "harness.h"
#include "smp/config.h"

namespace smp::perf::modes {

inline constexpr int kMicrobatches = 8;
inline constexpr int kWarmUpSteps = 6;  ///< results are promised from the third on, then replayed

enum class Mode { kDynamic, kAwaited, kStatic, kRelayedStatic };

/// On one thread, with kMicrobatches, and without a plan of earlier runs.
Config config_of(Mode mode);

/// Runs `body` in a session of its own in that mode.
using InSession = std::function<void(Mode mode, const std::function<void()>& body)>;

/// Duration of a step in one process, in microseconds; `mean` gets its loss.
double alone_us(const std::function<at::Tensor(at::Tensor)>& loss_of, const at::Tensor& batch,
                double* mean = nullptr);

/// On every rank.
double sum_of_ranks(double own);

}  // namespace smp::perf::modes
