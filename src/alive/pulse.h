// alive/pulse.h: what a process shows of itself, so that others see it without its help: it may be
// stopped, or stuck. The ranks of a machine keep theirs side by side in memory that they share.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/memory/shared_memory.h"

namespace smp::base {

/// The signs of life of one process. Only that process writes them, but for the last three; anyone
/// may read them at any time.
struct alignas(64) Pulse {
  std::atomic<std::uint64_t> beats{0};         ///< how often its thread came back (heartbeat.h)
  std::atomic<std::int64_t> last_beat{0};      ///< when that was last noticed, by SteadyClock
  std::atomic<std::int32_t> process{0};        ///< the process number; 0: nobody writes here
  std::atomic<std::int32_t> rank{-1};          ///< the rank in the job; -1: it has none yet
  std::atomic<std::int32_t> module{kNothing};  ///< number of the last routed module that ran
  std::atomic<std::int32_t> microbatch{-1};
  std::atomic<bool> backward{false};
  std::atomic<bool> running{false};      ///< that module is running now
  std::atomic<bool> spoke{false};        ///< the process has said why it ends
  std::atomic<bool> ends{false};         ///< it ends in good order, or because it was asked to
  std::atomic<std::int32_t> writing{0};  ///< it writes files of its run (alive/writing.h)
  /// The rank that says for all that this one is stopped (accuser_of); -1: none.
  std::atomic<std::int32_t> accuser{-1};
  std::atomic<bool> named{false};  ///< some rank said that this one is gone (first_to_name)
  /// An error of several ranks and the rank that reports it (speaker_of), in the pulse of rank 0
  /// only; 0: none yet.
  std::atomic<std::uint64_t> said{0};

  static constexpr std::int32_t kNothing = -2;  ///< no module ran yet
};

namespace detail {
extern std::atomic<Pulse*> pulse;
}
/// The pulse of this process; from PulseBoard::join() on other processes see it.
inline Pulse& own_pulse() noexcept { return *detail::pulse.load(std::memory_order_relaxed); }

/// A board with one pulse per rank of the job. Ranks of other machines write to another board.
class PulseBoard {
 public:
  static std::size_t bytes_for(int ranks) noexcept;
  explicit PulseBoard(SharedMemory memory) : memory_(std::move(memory)) {}

  [[nodiscard]] int ranks() const noexcept;
  [[nodiscard]] Pulse& of(int rank) const noexcept;
  /// Makes this board the one that own_pulse(), as `rank`, and pulse_of() use. Call it once per
  /// process; the board is never taken down, since other threads read it. Forked children are not
  /// on it: they would write to their parent's pulse.
  static void join(PulseBoard board, int rank);

 private:
  SharedMemory memory_;
};

/// Returns the number of ranks of the job, once this process has joined a board; else 0.
int ranks_on_board() noexcept;
/// Returns the pulse of a rank of this machine; nullptr if the rank is on another machine or
/// nothing is shared.
const Pulse* pulse_of(int rank) noexcept;
/// Returns the rank that reports for all ranks of this machine that `rank` is stopped: the first
/// of them to call this. Returns the own rank if it is the first, or nothing is shared. Forgotten
/// when the thread of `rank` comes back.
int accuser_of(int rank) noexcept;
/// True for the first caller that asks about `rank`, which is gone: that caller reports it for all.
/// False if nothing is shared with `rank`. Safe in a signal handler.
bool first_to_name(int rank) noexcept;
/// Returns the rank that reports an error for all ranks of this machine that end by it: the first
/// of them to call this. Returns the own rank if it is the first, nothing is shared, or another
/// error was there before. @param error  a hash of its text
int speaker_of(std::uint64_t error) noexcept;
/// True if the process of a rank of this machine has ended. Safe in a signal handler.
bool is_gone(const Pulse& pulse) noexcept;

}  // namespace smp::base
