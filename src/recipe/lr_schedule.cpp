// recipe/lr_schedule.cpp: see the header.
#include "smp/recipe/lr_schedule.h"

#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>

#include <cmath>
#include <numbers>

#include "base/check.h"

namespace smp {
namespace {

bool is_factor(double value) { return value >= 0 && value <= 1; }

void check(const LrScheduleOptions& options) {
  SMP_REQUIRE(options.warmup_steps >= 0 && options.constant_steps >= 0 && options.decay_steps >= 0,
              "LrSchedule: lengths are numbers of steps, not ", options.warmup_steps, ", ",
              options.constant_steps, " and ", options.decay_steps);
  SMP_REQUIRE(is_factor(options.warmup_start) && is_factor(options.floor),
              "LrSchedule: warmup_start (", options.warmup_start, ") and floor (", options.floor,
              ") are factors of the peak rate, from 0 to 1");
  SMP_REQUIRE(options.decay == LrDecay::kConstant || options.decay_steps > 0,
              "LrSchedule: decay_steps is missing: how many steps it takes from the peak to the "
              "floor; a rate that stays is LrDecay::kConstant");
}

/// From 1 to 0, of a decay that is `done`, in [0, 1].
double left_of(LrDecay decay, double done) {
  if (decay == LrDecay::kConstant) return 1;
  if (decay == LrDecay::kLinear) return 1 - done;
  return (1 + std::cos(std::numbers::pi * done)) / 2;
}

/// Both numbers are small integers that float64 holds.
double share(std::int64_t part, std::int64_t whole) {
  return static_cast<double>(part) / static_cast<double>(whole);
}

}  // namespace

double lr_factor(const LrScheduleOptions& options, std::int64_t step) {
  check(options);
  SMP_REQUIRE(step >= 0, "lr_factor: there is no step ", step);
  if (step < options.warmup_steps) {
    return options.warmup_start + (1 - options.warmup_start) * share(step, options.warmup_steps);
  }
  const auto since_peak = step - options.warmup_steps - options.constant_steps;
  if (since_peak <= 0 || options.decay == LrDecay::kConstant) return 1;
  const double done = since_peak < options.decay_steps ? share(since_peak, options.decay_steps) : 1;
  return options.floor + (1 - options.floor) * left_of(options.decay, done);
}

LrSchedule::LrSchedule(torch::optim::Optimizer& optimizer, const LrScheduleOptions& options)
    : optimizer_(optimizer), options_(options) {
  check(options);
  for (const auto& group : optimizer.param_groups()) peaks_.push_back(group.options().get_lr());
  set_rates();
}

void LrSchedule::step() {
  ++steps_;
  set_rates();
}

std::vector<double> LrSchedule::last_lr() const {
  std::vector<double> rates;
  for (const auto& group : optimizer_.param_groups()) rates.push_back(group.options().get_lr());
  return rates;
}

void LrSchedule::set_rates() {
  auto& groups = optimizer_.param_groups();
  SMP_REQUIRE(groups.size() == peaks_.size(), "LrSchedule: the optimizer has ", groups.size(),
              " groups, and had ", peaks_.size(),
              " when the schedule was made; make another schedule after add_param_group()");
  const double factor = lr_factor(options_, steps_);
  for (std::size_t i = 0; i < groups.size(); ++i) groups[i].options().set_lr(factor * peaks_[i]);
}

StateDict LrSchedule::state_dict() const {
  StateDict dict;
  dict.insert("last_epoch", at::full({}, steps_, at::kLong));
  dict.insert("base_lrs", at::tensor(peaks_, at::kDouble));
  return dict;
}

void LrSchedule::load_state_dict(const StateDict& dict) {
  SMP_REQUIRE(dict.at("last_epoch").numel() == 1,
              "LrSchedule::load_state_dict: \"last_epoch\" is one number, not ",
              dict.at("last_epoch").sizes());
  const auto steps = dict.at("last_epoch").item<std::int64_t>();
  const auto peaks = dict.at("base_lrs").to(at::kCPU, at::kDouble).contiguous();
  SMP_REQUIRE(steps >= 0, "LrSchedule::load_state_dict: there is no step ", steps);
  SMP_REQUIRE(peaks.numel() == std::ssize(peaks_), "LrSchedule::load_state_dict: the state is of ",
              peaks.numel(), " groups, and the optimizer has ", peaks_.size());
  const auto* const first = peaks.const_data_ptr<double>();
  peaks_.assign(first, first + peaks.numel());
  steps_ = steps;
  set_rates();
}

}  // namespace smp
