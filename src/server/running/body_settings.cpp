// server/running/body_settings.cpp: which switches were the body's own, and when it threw them.
#include "server/running/body_settings.h"

#include "base/check.h"

namespace smp::server {

void BodySettings::call_begins(const View& view) {
  if (first_call_ == nullptr) first_call_ = view;
  before_call_ = view;
}

void BodySettings::call_ends(const View& view, const SettingFlags::Subtree& part) {
  if (view == before_call_) return;
  by_modules_.resize(view->size());
  for (const auto flag : part) {
    if ((*view)[flag] != (*before_call_)[flag]) by_modules_[flag] = 1;
  }
}

/// True if the body leaves `flag` other than it was at the begin, after it may have used it. A flag
/// that is switched before the first call is switched in every microbatch, so it does not count.
/// Without any call it is not known what the body used before it switched the flag.
bool BodySettings::leaves(std::size_t flag, const View& begin, const View& end) const {
  const auto& used = called() ? first_call_ : begin;
  return (*end)[flag] != (*begin)[flag] && (*end)[flag] != (*used)[flag];
}

bool BodySettings::changes_the_next(const View& begin, const View& end) const {
  if (begin == end) return false;
  for (std::size_t i = 0; i < end->size(); ++i) {
    if (leaves(i, begin, end)) return true;
  }
  return false;
}

std::optional<std::size_t> BodySettings::late_switch(const View& begin, const View& end) const {
  if (begin == end) return std::nullopt;
  for (std::size_t i = 0; i < end->size(); ++i) {
    const bool by_module = i < by_modules_.size() && by_modules_[i] != 0;
    if (!by_module && leaves(i, begin, end)) return i;
  }
  return std::nullopt;
}

void BodySettings::require_repeatable(const SettingFlags& flags, const View& begin,
                                      const View& end) const {
  const auto late = late_switch(begin, end);
  if (!late) return;
  const bool on = (*end)[*late] != 0;
  SMP_REQUIRE(false, "the step's body leaves ", flags.describe(*late, on),
              called() ? " but called the model" : " but may have used the model",
              " before it did so. In one process the next microbatch would "
              "begin like that; here microbatches run at the same time, and it began with ",
              flags.describe(*late, !on),
              ". Switch before the body's first call of the model, or back before the body ends");
}

}  // namespace smp::server
