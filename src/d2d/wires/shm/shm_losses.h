// d2d/wires/shm/shm_losses.h: notices that ranks of this machine are gone.
// Threads: one at a time; the kernel is listened to by a thread of its own.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

#include "alive/process_watch.h"
#include "base/clock.h"
#include "base/machine/doorbell.h"
#include "d2d/wires/shm/host_shm_segment.h"

namespace smp::d2d {

/// The peers whose processes have ended though they had not left.
class ShmLosses {
 public:
  /// @param segments   of each member, by position; outlive this
  /// @param own        the position of this rank
  /// @param processes  of each member; empty: they are not known
  /// @param doorbell   of this rank, rung when one of them ends; outlives this
  /// @param patience   HostShmOptions::launcher_patience
  /// @throws std::system_error  the machine has no more threads.
  ShmLosses(const std::vector<HostShmSegment>& segments, int own,
            const std::vector<std::int64_t>& processes, base::Doorbell& doorbell,
            base::Nanoseconds patience);

  /// True if a process has ended, lost or not.
  bool any_ended() const noexcept { return any_ended_.load(std::memory_order_acquire); }
  bool is_lost(std::size_t position) const noexcept;
  /// True if a peer has been lost, as far as calls of this saw, for longer than the launcher's
  /// patience: with a rank that has ended the job ends as a rule, and this process with it.
  bool any_for_long();

 private:
  bool any() const noexcept;

  const std::vector<HostShmSegment>& segments_;
  std::size_t own_;
  base::Nanoseconds patience_;
  std::optional<base::Nanoseconds> since_;
  std::vector<std::atomic<bool>> ended_;  // processes, by position
  std::atomic<bool> any_ended_ = false;
  base::ProcessWatch watch_;  // the last: its thread writes the others
};

}  // namespace smp::d2d
