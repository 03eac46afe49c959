// base/pulse.cpp: see the header.
#include "base/pulse.h"

#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <new>
#include <utility>

#include "base/clock.h"

namespace smp::base {
namespace {

constinit Pulse before_joining;
constinit std::atomic<const PulseBoard*> joined{nullptr};

}  // namespace

constinit std::atomic<Pulse*> detail::pulse{&before_joining};

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

bool is_gone(const Pulse& pulse) noexcept {
  return ::kill(pulse.process, 0) != 0 && errno == ESRCH;
}

int accuser_of(int rank) noexcept {
  const int own = own_pulse().rank;
  if (pulse_of(rank) == nullptr) return own;
  int first = -1;
  return joined.load()->of(rank).accuser.compare_exchange_strong(first, own) ? own : first;
}

}  // namespace smp::base
