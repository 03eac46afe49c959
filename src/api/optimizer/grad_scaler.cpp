// api/optimizer/grad_scaler.cpp: what ranks found, agreed; then Python's rules.
#include "smp/precision/grad_scaler.h"

#include <ATen/ATen.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <limits>
#include <string>
#include <vector>

#include "api/optimizer/total_norm.h"
#include "api/rank/exchange.h"
#include "api/rank/public_call.h"
#include "api/rank/rank.h"
#include "api/rank/session_parts.h"
#include "api/state/session_state.h"
#include "base/check.h"

namespace smp {
namespace {

/// What one rank knows of an optimizer's gradients, and of its scaler.
struct Found {
  bool any_gradient = false;
  bool any_infinite = false;
  std::string problem;  ///< why they cannot be unscaled
  std::string scaler;   ///< factor, options and counters
};

/// Smaller ones have an inverse that is no float.
constexpr float kSmallest = std::numeric_limits<float>::min();

std::string who() {
  const auto* const rank = Rank::find_current();
  return rank == nullptr ? std::string() : base::concat("rank ", rank->topology().rank(), ": ");
}

float factor_of(double value, const char* name) {
  const auto factor = static_cast<float>(value);
  SMP_REQUIRE(std::isfinite(factor) && factor >= kSmallest, who(), "smp::GradScaler: ", name,
              " is ", value, ", must be from ", kSmallest, " to ",
              std::numeric_limits<float>::max());
  return factor;
}

void check(const GradScalerOptions& options, const char* scale_name = "init_scale") {
  static_cast<void>(factor_of(options.init_scale, scale_name));
  SMP_REQUIRE(std::isfinite(options.growth_factor) && options.growth_factor > 1, who(),
              "smp::GradScaler: growth_factor is ", options.growth_factor,
              ", must be greater than 1");
  SMP_REQUIRE(options.backoff_factor > 0 && options.backoff_factor < 1, who(),
              "smp::GradScaler: backoff_factor is ", options.backoff_factor,
              ", must be between 0 and 1");
  SMP_REQUIRE(options.growth_interval >= 1 && options.hysteresis >= 1, who(),
              "smp::GradScaler: growth_interval ", options.growth_interval, " and hysteresis ",
              options.hysteresis, " must be at least 1");
}

/// The values of a gradient, in which each element is once: sums of a sparse one's entries may be
/// infinite where no entry is, and what is expanded cannot be written.
at::Tensor values_of(const at::Tensor& parameter) {
  const auto& gradient = parameter.grad();
  if (!gradient.is_sparse()) {
    if (at::has_internal_overlap(gradient) != at::MemOverlap::No) {
      at::Tensor(parameter).mutable_grad() = gradient.clone(at::MemoryFormat::Contiguous);
    }
    return parameter.grad().detach();
  }
  const auto summed = gradient.detach().coalesce();
  at::Tensor(parameter).mutable_grad() = summed;
  return summed._values();
}

/// The factor of one device, and whether a gradient there was infinite.
struct OnDevice {
  explicit OnDevice(at::Device where, float scale)
      : device(where),
        infinite(at::zeros({1}, at::device(where).dtype(at::kFloat))),
        inverse(at::full({1}, static_cast<float>(1.0 / scale), infinite.options())) {}

  at::Device device;
  at::Tensor infinite, inverse;
};

OnDevice& find_device(std::vector<OnDevice>& devices, at::Device device, float scale) {
  for (auto& known : devices) {
    if (known.device == device) return known;
  }
  return devices.emplace_back(device, scale);
}

/// In float16 a gradient without its factor would vanish; the optimizer's masters take it as it is.
void widen_gradient(const at::Tensor& parameter) {
  auto& gradient = at::Tensor(parameter).mutable_grad();
  if (gradient.scalar_type() == at::kHalf) gradient = gradient.detach().to(at::kFloat);
}

/// Divides the gradients that this rank has.
Found unscale_own(torch::optim::Optimizer& optimizer, float scale) {
  const at::NoGradGuard no_grad;
  std::vector<OnDevice> devices;
  Found found;
  for (const auto& group : optimizer.param_groups()) {
    for (const auto& parameter : group.params()) {
      if (!parameter.grad().defined()) continue;
      found.any_gradient = true;
      widen_gradient(parameter);
      const auto values = values_of(parameter);
      auto& device = find_device(devices, values.device(), scale);
      at::_amp_foreach_non_finite_check_and_unscale_({values}, device.infinite, device.inverse);
    }
  }
  for (const auto& device : devices) found.any_infinite |= device.infinite.item<float>() != 0;
  return found;
}

bool has_masters() {
  const auto* const rank = Rank::find_current();
  return rank != nullptr && rank->config().master_weights;
}

/// Returns why a gradient cannot be unscaled, or an empty text.
std::string obstacle(const at::Tensor& gradient) {
  const auto is = base::concat(who(), "a gradient of shape ", gradient.sizes(), " is ");
  if (gradient.scalar_type() == at::kHalf && !has_masters()) {
    return is +
           "float16: unscaled, it would lose what the scale has saved; set precision = fp16 (or "
           "master_weights), so that the optimizer takes it in float32, or keep parameters in "
           "float32 or bfloat16 and compute in float16 by autocast";
  }
  if (gradient.is_complex()) return is + "complex; LibTorch has no unscaling for it";
  if (gradient.layout() != at::kStrided && !gradient.is_sparse()) {
    return base::concat(is, "of layout ", gradient.layout(), ", must be strided or COO");
  }
  return {};
}

std::string obstacle(torch::optim::Optimizer& optimizer) {
  for (const auto& group : optimizer.param_groups()) {
    for (const auto& parameter : group.params()) {
      if (!parameter.grad().defined()) continue;
      if (auto found = obstacle(parameter.grad()); !found.empty()) return found;
    }
  }
  return {};
}

/// Returns `own` of all ranks of the job, or alone where there is no session.
template <class T>
std::vector<T> from_all(const T& own, const char* what) {
  const auto* const session = SessionParts::find_current();
  if (session == nullptr) return {own};
  return gather_values(session->rank.groups().of(Group::kWorld), own, what);
}

/// The same of all ranks. @throws UsageError  some rank has a problem, or another scaler.
std::vector<Found> agreed(const Found& own) {
  auto all = from_all(own, "GradScaler::unscale_");
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const auto& found = all[rank];
    SMP_REQUIRE(found.problem.empty(), "smp::GradScaler::unscale_: ", found.problem);
    SMP_REQUIRE(found.scaler == all.front().scaler, "smp::GradScaler: rank 0 has ",
                all.front().scaler, ", rank ", rank, " has ", found.scaler,
                "; construct it, load_state_dict() and update() alike on every rank");
  }
  return all;
}

double number_of(const StateDict& dict, const char* name) {
  SMP_REQUIRE(dict.contains(name), who(), "smp::GradScaler::load_state_dict: no entry '", name,
              "'; it has ", dict.size(), " entries");
  const auto& value = dict.at(name);
  SMP_REQUIRE(value.numel() == 1 && !value.is_complex(), who(),
              "smp::GradScaler::load_state_dict: entry '", name, "' is of shape ", value.sizes(),
              ", must be one number");
  return value.item<double>();
}

std::int64_t whole_of(const StateDict& dict, const char* name) {
  const double value = number_of(dict, name);
  SMP_REQUIRE(std::abs(value) < 1e15 && value == std::floor(value), who(),
              "smp::GradScaler::load_state_dict: entry '", name, "' is ", value,
              ", must be a whole number");
  return static_cast<std::int64_t>(value);
}

std::int64_t count_of(const StateDict& dict, const char* name) {
  const auto value = whole_of(dict, name);
  SMP_REQUIRE(value >= 0, who(), "smp::GradScaler::load_state_dict: entry '", name, "' is ", value,
              ", must be a count");
  return value;
}

/// For the run's log.
void note(double factor, std::int64_t skipped_steps) {
  if (auto* const state = SessionState::find_current()) {
    state->note_loss_scale({factor, skipped_steps});
  }
}

}  // namespace

GradScaler::GradScaler(const GradScalerOptions& options)
    : options_(options),
      scale_(static_cast<float>(options.init_scale)),
      bad_steps_left_(options.hysteresis) {
  check(options);
}

std::string GradScaler::text() const {
  return base::concat("scale ", scale_, ", growth_factor ", options_.growth_factor,
                      ", backoff_factor ", options_.backoff_factor, ", growth_interval ",
                      options_.growth_interval, ", hysteresis ", options_.hysteresis,
                      ", _growth_tracker ", good_steps_, ", _hysteresis_tracker ", bad_steps_left_);
}

double GradScaler::get_scale() const noexcept { return options_.enabled ? scale_ : 1; }

at::Tensor GradScaler::scale(const at::Tensor& loss) const {
  return options_.enabled ? loss * static_cast<double>(scale_) : loss;
}

void GradScaler::unscale(torch::optim::Optimizer& optimizer) {
  if (!options_.enabled) return;
  refuse_in_step("smp::GradScaler::unscale_");
  const PublicCall call("smp::GradScaler::unscale_");
  SMP_REQUIRE(optimizers_.count(&optimizer) == 0, who(),
              "smp::GradScaler::unscale_ of an optimizer a second time, or after step(); call "
              "update() first, once after the steps of all optimizers");
  Found own;
  own.problem = obstacle(optimizer);
  own.scaler = text();
  static_cast<void>(agreed(own));  // before any rank divides
  try {
    own = unscale_own(optimizer, scale_);
  } catch (const std::exception& error) {
    own.problem = who() + error.what();
  }
  Progress progress;
  bool any_gradient = false;
  for (const auto& found : agreed(own)) {
    any_gradient |= found.any_gradient;
    progress.found_inf |= found.any_infinite;
  }
  SMP_REQUIRE(any_gradient, who(),
              "smp::GradScaler: no parameter of the optimizer has a gradient on any rank; call it "
              "after a step of the model and before zero_grad()");
  optimizers_[&optimizer] = progress;
}

bool GradScaler::may_step(torch::optim::Optimizer& optimizer) {
  if (!options_.enabled) return true;
  refuse_in_step("smp::GradScaler::step");
  if (optimizers_.count(&optimizer) == 0) unscale(optimizer);
  auto& progress = optimizers_.at(&optimizer);
  SMP_REQUIRE(!progress.stepped, who(),
              "smp::GradScaler::step of an optimizer a second time; call update() first, once "
              "after the steps of all optimizers");
  progress.stepped = true;
  if (progress.found_inf) ++skipped_steps_;
  return !progress.found_inf;
}

void GradScaler::update() {
  if (!options_.enabled) return;
  refuse_in_step("smp::GradScaler::update");
  SMP_REQUIRE(!optimizers_.empty(), who(),
              "smp::GradScaler::update before step() of any optimizer since the last update()");
  const bool bad = std::any_of(optimizers_.begin(), optimizers_.end(),
                               [](const auto& item) { return item.second.found_inf; });
  optimizers_.clear();
  if (bad) {
    good_steps_ = 0;
    if (--bad_steps_left_ <= 0) {
      scale_ = std::max(static_cast<float>(scale_ * options_.backoff_factor), kSmallest);
    }
  } else if (++good_steps_ >= options_.growth_interval) {
    good_steps_ = 0;
    bad_steps_left_ = options_.hysteresis;
    const auto larger = static_cast<float>(scale_ * options_.growth_factor);
    if (std::isfinite(larger)) scale_ = larger;
  }
  note(scale_, skipped_steps_);
}

void GradScaler::update(double new_scale) {
  if (!options_.enabled) return;
  const auto factor = factor_of(new_scale, "the new scale");
  optimizers_.clear();
  scale_ = factor;
  note(scale_, skipped_steps_);
}

StateDict GradScaler::state_dict() const {
  const auto number = [](double value) { return at::full({}, value, at::kDouble); };
  const auto count = [&](std::int64_t value) { return number(static_cast<double>(value)); };
  return {{"scale", number(scale_)},
          {"growth_factor", number(options_.growth_factor)},
          {"backoff_factor", number(options_.backoff_factor)},
          {"growth_interval", count(options_.growth_interval)},
          {"_growth_tracker", count(good_steps_)},
          {"hysteresis", count(options_.hysteresis)},
          {"_hysteresis_tracker", count(bad_steps_left_)},
          {"skipped_steps", count(skipped_steps_)}};
}

/// A dict of Python's scaler has neither hysteresis nor skipped steps.
void GradScaler::load_state_dict(const StateDict& dict) {
  if (!options_.enabled) return;
  const auto has = [&](const char* name) { return dict.contains(name); };
  auto options = options_;
  options.init_scale = number_of(dict, "scale");
  options.growth_factor = number_of(dict, "growth_factor");
  options.backoff_factor = number_of(dict, "backoff_factor");
  options.growth_interval = count_of(dict, "growth_interval");
  if (has("hysteresis")) options.hysteresis = count_of(dict, "hysteresis");
  check(options, "scale");
  const auto good = count_of(dict, "_growth_tracker");
  const auto left =
      has("_hysteresis_tracker") ? whole_of(dict, "_hysteresis_tracker") : options.hysteresis;
  const auto skipped = has("skipped_steps") ? count_of(dict, "skipped_steps") : 0;
  options_ = options;
  scale_ = static_cast<float>(options.init_scale);
  good_steps_ = good;
  bad_steps_left_ = left;
  skipped_steps_ = skipped;
}

}  // namespace smp
