// alive/pulse.h: what a process shows of itself, so that others see it without its help: it may be
// stopped, or stuck. The ranks of a machine keep theirs side by side in memory that they share.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/memory/shared_memory.h"

namespace smp::base {

/// Written by its process only, but for the last three; anyone may read it at any time.
struct alignas(64) Pulse {
  std::atomic<std::uint64_t> beats{0};         ///< how often its thread came back (heartbeat.h)
  std::atomic<std::int64_t> last_beat{0};      ///< when that was last noticed, by SteadyClock
  std::atomic<std::int32_t> process{0};        ///< its number; 0: nobody writes here
  std::atomic<std::int32_t> rank{-1};          ///< of the job; -1: it has none yet
  std::atomic<std::int32_t> module{kNothing};  ///< of a routed module, the last that ran
  std::atomic<std::int32_t> microbatch{-1};
  std::atomic<bool> backward{false};
  std::atomic<bool> running{false};  ///< that module has the thread
  std::atomic<bool> spoke{false};    ///< it said why it ends
  std::atomic<bool> ends{false};     ///< in good order, or because it was asked to
  /// Of the rank that says for all that this one is stopped (accuser_of); -1: none.
  std::atomic<std::int32_t> accuser{-1};
  std::atomic<bool> named{false};  ///< some rank said that this one is gone (first_to_name)
  /// Of rank 0 only: an error of several ranks, and who says it (speaker_of); 0: none yet.
  std::atomic<std::uint64_t> said{0};

  static constexpr std::int32_t kNothing = -2;  ///< no module ran yet
};

namespace detail {
extern std::atomic<Pulse*> pulse;
}
/// Of this process; from PulseBoard::join() on it lies where others see it.
inline Pulse& own_pulse() noexcept { return *detail::pulse.load(std::memory_order_relaxed); }

/// One pulse a rank, for all ranks of the job; those of other machines write to others.
class PulseBoard {
 public:
  static std::size_t bytes_for(int ranks) noexcept;
  explicit PulseBoard(SharedMemory memory) : memory_(std::move(memory)) {}

  [[nodiscard]] int ranks() const noexcept;
  [[nodiscard]] Pulse& of(int rank) const noexcept;
  /// From now on own_pulse() is that of `rank` here, and pulse_of() looks here. Once a process; the
  /// board is never taken down, since other threads read it.
  static void join(PulseBoard board, int rank);
  /// In a forked child, before anything else: what it does is not what its parent does. From now on
  /// it is on no board.
  static void leave() noexcept;

 private:
  SharedMemory memory_;
};

/// Ranks of the job, once this process joined a board; else 0.
int ranks_on_board() noexcept;
/// Of a rank of this machine, or nullptr: of another one, or nothing is shared.
const Pulse* pulse_of(int rank) noexcept;
/// Of all ranks of this machine that end because `rank` is stopped, the first to ask here: it says
/// so for all. The own rank if it is the first, or nothing is shared. Forgotten when that rank's
/// thread comes back.
int accuser_of(int rank) noexcept;
/// Whether no rank has asked this of `rank`, which is gone, before: then the caller says so for
/// all. False if nothing is shared with it. Safe in a handler of signals.
bool first_to_name(int rank) noexcept;
/// Of the ranks of this machine that end by the same error, the first to ask here: it says so for
/// all. The own rank if it is the first, nothing is shared, or another error was there before.
/// @param error  a hash of its text
int speaker_of(std::uint64_t error) noexcept;
/// Whether the process of a rank of this machine has ended. Safe in a handler of signals.
bool is_gone(const Pulse& pulse) noexcept;

}  // namespace smp::base
