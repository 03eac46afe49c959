// recipe/throughput.cpp: see the header.
#include "smp/recipe/throughput.h"

#include "base/check.h"

namespace smp {
namespace {

constexpr double kFourMillion = 4194304;  // 1,024 sequences of 4,096 tokens

}  // namespace

Throughput throughput(const ThroughputOptions& options, std::int64_t steps, double seconds) {
  SMP_REQUIRE(steps > 0 && seconds > 0, "throughput: ", steps, " steps in ", seconds,
              " s; both are above 0");
  Throughput rates;
  const auto sequences = static_cast<double>(steps * options.sequences_per_step);
  rates.sequences_per_second = sequences / seconds;
  rates.tokens_per_second =
      rates.sequences_per_second * static_cast<double>(options.sequence_length);
  rates.flops_per_second = rates.sequences_per_second * options.flops_per_sequence;
  if (options.peak_flops > 0) rates.mfu = rates.flops_per_second / options.peak_flops;
  rates.mfpi = rates.flops_per_second / options.instances;
  const double price_per_second = options.price_per_hour * options.instances / 3600;
  rates.cost_per_4m_tokens = price_per_second * kFourMillion / rates.tokens_per_second;
  return rates;
}

ThroughputMeter::ThroughputMeter(const ThroughputOptions& options, std::int64_t skipped)
    : options_(options), skipped_(skipped) {
  SMP_REQUIRE(
      options.sequence_length > 0 && options.sequences_per_step > 0 && options.instances > 0,
      "ThroughputMeter: a step has ", options.sequences_per_step, " sequences of ",
      options.sequence_length, " tokens, on ", options.instances, " instances; each is at least 1");
  SMP_REQUIRE(options.flops_per_sequence >= 0 && options.peak_flops >= 0 &&
                  options.price_per_hour >= 0 && skipped >= 0,
              "ThroughputMeter: neither operations nor prices nor skipped steps are negative");
}

Throughput ThroughputMeter::step(double seconds) {
  const auto rates = throughput(options_, 1, seconds);
  ++steps_;
  (steps_ <= skipped_ ? first_seconds_ : seconds_) += seconds;
  return rates;
}

Throughput ThroughputMeter::mean() const {
  if (steps_ == 0) return {};
  if (steps_ <= skipped_) return throughput(options_, steps_, first_seconds_);
  return throughput(options_, steps_ - skipped_, seconds_);
}

}  // namespace smp
