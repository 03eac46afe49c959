// recipe/spike_detector.cpp: see the header.
#include "smp/recipe/spike_detector.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "base/check.h"

namespace smp {

SpikeDetector::SpikeDetector(const SpikeDetectorOptions& options) : options_(options) {
  SMP_REQUIRE(options.window > 0, "SpikeDetector: a window of ", options.window, " steps is empty");
  SMP_REQUIRE(options.threshold >= 0, "SpikeDetector: the threshold is ", options.threshold,
              ", and must not be negative");
}

bool SpikeDetector::observe(double value) {
  const double level = this->level();
  const bool is_spike =
      !std::isnan(level) && (!std::isfinite(value) || value > level + options_.threshold);
  if (is_spike) {
    ++running_;
  } else if (running_ > 0) {
    ++ended_[running_];
    running_ = 0;
  }
  if (std::isfinite(value)) values_.push_back(value);
  if (std::ssize(values_) > options_.window) values_.pop_front();
  return is_spike;
}

double SpikeDetector::level() const {
  if (std::ssize(values_) < options_.window) return std::numeric_limits<double>::quiet_NaN();
  // Summed anew each time: a running sum would carry the rounding of a large spike along.
  return std::accumulate(values_.begin(), values_.end(), 0.0) / static_cast<double>(values_.size());
}

std::int64_t SpikeDetector::spikes() const {
  std::int64_t count = running_ > 0 ? 1 : 0;
  for (const auto& [length, number] : ended_) count += number;
  return count;
}

double SpikeDetector::recovered_in_one_step() const {
  const auto all = spikes() - (running_ > 0 ? 1 : 0);
  if (all == 0) return std::numeric_limits<double>::quiet_NaN();
  const auto single = ended_.find(1);
  return single == ended_.end() ? 0
                                : static_cast<double>(single->second) / static_cast<double>(all);
}

StateDict SpikeDetector::state_dict() const {
  auto ended = at::empty({std::ssize(ended_), 2}, at::kLong);
  auto* to = ended.mutable_data_ptr<std::int64_t>();
  for (const auto& [length, number] : ended_) {
    *to++ = length;
    *to++ = number;
  }
  StateDict dict;
  dict.insert("values",
              at::tensor(std::vector<double>(values_.begin(), values_.end()), at::kDouble));
  dict.insert("running", at::full({}, running_, at::kLong));
  dict.insert("ended", ended);
  return dict;
}

void SpikeDetector::load_state_dict(const StateDict& dict) {
  const auto values = dict.at("values").to(at::kCPU, at::kDouble).contiguous();
  SMP_REQUIRE(dict.at("running").numel() == 1,
              "SpikeDetector::load_state_dict: \"running\" is one number, not ",
              dict.at("running").sizes());
  const auto running = dict.at("running").item<std::int64_t>();
  const auto ended = dict.at("ended").to(at::kCPU, at::kLong).contiguous();
  SMP_REQUIRE(
      values.dim() == 1 && ended.dim() == 2 && ended.size(1) == 2,
      "SpikeDetector::load_state_dict: \"values\" has a row and \"ended\" two columns, not ",
      values.sizes(), " and ", ended.sizes());
  const auto* const first = values.const_data_ptr<double>();
  const auto kept = std::min<std::int64_t>(values.numel(), options_.window);
  values_.assign(first + values.numel() - kept, first + values.numel());
  running_ = running;
  ended_.clear();
  const auto* const pairs = ended.const_data_ptr<std::int64_t>();
  for (std::int64_t row = 0; row < ended.size(0); ++row)
    ended_[pairs[2 * row]] = pairs[2 * row + 1];
}

}  // namespace smp
