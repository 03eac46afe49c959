// schedule/yield_policy.cpp: a turn is due after an answer, and after long work.
#include "schedule/yield_policy.h"

namespace smp::schedule {

YieldPolicy::Turn YieldPolicy::begin(bool passes_answer_on, base::Nanoseconds now,
                                     bool awaits_answers, bool measured_time) const noexcept {
  const bool answers_are_due = measured_time && awaits_answers;
  const auto since_last = now - last_turn_;
  if (!passes_answer_on && !(answers_are_due && since_last > kLongWork)) return {};
  return {true, answers_are_due && patient_ ? schedule::patience(since_last) : 0};
}

}  // namespace smp::schedule
