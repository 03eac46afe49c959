// alive/writing.cpp: a count in each pulse.
#include "alive/writing.h"

#include "alive/pulse.h"

namespace smp::base {
namespace {

constexpr Nanoseconds kForFiles = 60 * kSecond;

bool another_rank_writes() noexcept {
  for (int rank = 0; rank < ranks_on_board(); ++rank) {
    const auto* const pulse = pulse_of(rank);
    if (pulse == nullptr || pulse == &own_pulse()) continue;
    if (pulse->writing > 0 && !is_gone(*pulse)) return true;
  }
  return false;
}

}  // namespace

Writing::Writing() noexcept { ++own_pulse().writing; }
Writing::~Writing() { --own_pulse().writing; }

EndOfPatience::EndOfPatience(Nanoseconds patience) noexcept : end_(clock_.now() + patience) {}

bool EndOfPatience::has_come() const noexcept {
  const auto late = clock_.now() - end_;
  return late > 0 && (late > kForFiles || !another_rank_writes());
}

}  // namespace smp::base
