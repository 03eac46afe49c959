// smp/recipe/throughput.h: how fast a training is, against its machine and its price.
#pragma once

#include <cstdint>

#include "smp/detail/export.h"

namespace smp {

/// What one step computes, and on what.
struct ThroughputOptions {
  std::int64_t sequence_length = 0;     ///< tokens of one sequence
  std::int64_t sequences_per_step = 0;  ///< of all replicas
  double flops_per_sequence = 0;        ///< of the model: training_flops()
  /// Operations per second of all ranks together: measured_gemm_flops() summed over them. 0: not
  /// known.
  double peak_flops = 0;
  int instances = 1;          ///< machines
  double price_per_hour = 0;  ///< of one machine, in any currency
};

/// Rates over some steps.
struct Throughput {
  double sequences_per_second = 0;
  double tokens_per_second = 0;
  double flops_per_second = 0;  ///< of the model
  double mfu = 0;               ///< their share of the peak; 0 if that is not known
  /// Model operations per second and instance, t · f / n of NxDT (section 6.1 there).
  double mfpi = 0;
  /// The price of 4,194,304 tokens, (p · n / 3600) · (4194304 / (s · t)) of NxDT.
  double cost_per_4m_tokens = 0;
};

/// Returns the rates of `steps` steps that took `seconds` together. Any thread.
/// @throws UsageError  `steps` or `seconds` is not positive.
SMP_API Throughput throughput(const ThroughputOptions& options, std::int64_t steps, double seconds);

/// Adds up steps. Threads: one at a time.
class SMP_API ThroughputMeter {
 public:
  /// @param options  of every step
  /// @param skipped  steps at the beginning that mean() leaves out: they plan, and warm up
  /// @throws UsageError  a size is not positive, or a rate or price negative.
  explicit ThroughputMeter(const ThroughputOptions& options, std::int64_t skipped = 2);

  /// Takes the next step's time. Returns the rates of this step alone.
  /// @throws UsageError  `seconds` is not positive.
  Throughput step(double seconds);
  /// Returns the rates of all steps but the skipped ones; of all if there are no others; zeros
  /// before the first.
  Throughput mean() const;

 private:
  ThroughputOptions options_;
  std::int64_t skipped_;
  std::int64_t steps_ = 0;
  double first_seconds_ = 0;  // of the skipped steps
  double seconds_ = 0;        // of the others
};

}  // namespace smp
