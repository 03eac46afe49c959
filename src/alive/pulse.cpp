// alive/pulse.cpp: see the header.
#include "alive/pulse.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <new>
#include <utility>

#include "alive/process_watch.h"
#include "base/clock.h"

namespace smp::base {
namespace {

constinit Pulse before_joining;
constinit std::atomic<const PulseBoard*> joined{nullptr};

}  // namespace

constinit std::atomic<Pulse*> detail::pulse{&before_joining};

namespace {

void leave_board() noexcept {
  detail::pulse = &before_joining;
  joined = nullptr;
}

}  // namespace

std::size_t PulseBoard::bytes_for(int ranks) noexcept {
  return static_cast<std::size_t>(ranks) * sizeof(Pulse);
}

int PulseBoard::ranks() const noexcept {
  return static_cast<int>(memory_.bytes().size() / sizeof(Pulse));
}

Pulse& PulseBoard::of(int rank) const noexcept {
  return std::launder(reinterpret_cast<Pulse*>(memory_.bytes().data()))[rank];
}

void PulseBoard::join(PulseBoard board, int rank) {
  const auto* const kept = new PulseBoard(std::move(board));
  Pulse& place = *new (&kept->of(rank)) Pulse();
  place.process = ::getpid();
  place.rank = rank;
  place.last_beat = SteadyClock().now();
  detail::pulse = &place;
  joined = kept;
  static const int once = ::pthread_atfork(nullptr, nullptr, leave_board);
  static_cast<void>(once);
}

int ranks_on_board() noexcept {
  const auto* const board = joined.load();
  return board == nullptr ? 0 : board->ranks();
}

const Pulse* pulse_of(int rank) noexcept {
  if (rank < 0 || rank >= ranks_on_board()) return nullptr;
  const Pulse& pulse = joined.load()->of(rank);
  return pulse.process.load() == 0 ? nullptr : &pulse;
}

bool is_gone(const Pulse& pulse) noexcept { return has_ended(pulse.process); }

int accuser_of(int rank) noexcept {
  const int own = own_pulse().rank;
  if (pulse_of(rank) == nullptr) return own;
  int first = -1;
  return joined.load()->of(rank).accuser.compare_exchange_strong(first, own) ? own : first;
}

bool first_to_name(int rank) noexcept {
  return pulse_of(rank) != nullptr && !joined.load()->of(rank).named.exchange(true);
}

int speaker_of(std::uint64_t error) noexcept {
  constexpr std::uint64_t kRanks = 1
                                   << 24;  // the rest is of the hash; not 0, so neither is a claim
  const int own = own_pulse().rank;
  if (ranks_on_board() == 0) return own;
  const std::uint64_t text = (error / kRanks + 1) * kRanks;
  std::uint64_t first = 0;
  auto& said = joined.load()->of(0).said;
  if (said.compare_exchange_strong(first, text + static_cast<std::uint64_t>(own))) return own;
  return first / kRanks == text / kRanks ? static_cast<int>(first % kRanks) : own;
}

}  // namespace smp::base
