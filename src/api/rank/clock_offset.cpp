// api/rank/clock_offset.cpp: Cristian's algorithm, the best of some rounds.
#include "api/rank/clock_offset.h"

#include <cstddef>
#include <limits>

#include "api/rank/exchange.h"

namespace smp {
namespace {

using base::Nanoseconds;

constexpr int kRounds = 16;

/// Returns the offset of the answering rank's clock against that of the asking rank, on both.
/// @param there, back  the same two ranks; the first of `there` asks, the first of `back` answers
ClockOffset ask(const d2d::Communicator& there, const d2d::Communicator& back,
                const std::function<Nanoseconds()>& now) {
  ClockOffset best{0, std::numeric_limits<Nanoseconds>::max()};
  for (int round = 0; round < kRounds; ++round) {
    const auto before = value_of_first(there, now());
    const auto answer = value_of_first(back, now());
    const auto after = now();
    const auto error = (after - before) / 2 + 1;
    if (error < best.error) best = {answer - (before + (after - before) / 2), error};
  }
  return {value_of_first(there, best.offset), value_of_first(there, best.error)};
}

}  // namespace

ClockOffset clock_offset(const d2d::Communicator& ranks, const std::function<Nanoseconds()>& now,
                         const std::vector<bool>& shares_clock) {
  ClockOffset own;
  const auto first = ranks.members()[0];
  for (int other = 1; other < ranks.size(); ++other) {
    if (shares_clock.at(static_cast<std::size_t>(other))) continue;
    if (ranks.rank() != 0 && ranks.rank() != other) continue;
    const auto peer = ranks.members()[other];
    const auto found = ask(ranks.among(d2d::Members({first, peer})),
                           ranks.among(d2d::Members({peer, first})), now);
    if (ranks.rank() == other) own = found;
  }
  return own;
}

}  // namespace smp
