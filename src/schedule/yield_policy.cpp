// schedule/yield_policy.cpp: a turn is due after an answer, and after long work.
#include "schedule/yield_policy.h"

namespace smp::schedule {

YieldPolicy::Turn YieldPolicy::begin(bool passes_answer_on, base::Nanoseconds now,
                                     bool awaits_answers, bool measured_time) noexcept {
  const bool answers_are_due = measured_time && awaits_answers;
  const auto since_last = now - last_turn_;
  if (!passes_answer_on && !(answers_are_due && since_last > kLongWork)) return {};
  return {true, answers_are_due && patient_ ? patience_after(since_last) : 0};
}

base::Nanoseconds YieldPolicy::patience_after(base::Nanoseconds since_last) noexcept {
  const auto patience = schedule::patience(since_last);
  if (patience == 0 || waits_in_vain_ < kWaitsInVain) return patience;
  if (++turns_without_ < kTurnsToProbe) return 0;
  turns_without_ = 0;
  return patience;
}

void YieldPolicy::end(base::Nanoseconds now, Waited waited) noexcept {
  last_turn_ = now;
  if (waited == Waited::kPaidOff) waits_in_vain_ = 0;
  if (waited == Waited::kInVain) ++waits_in_vain_;
}

}  // namespace smp::schedule
