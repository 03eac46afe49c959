// server/running/work_count.h: whether an execution has done anything since one of its calls.
#pragma once

#include <algorithm>
#include <cstdint>

namespace smp::server {

/// Numbers the calls of an execution, remote and local ones, and notes which of them have been at
/// work.
class WorkCount {
 public:
  /// The number of calls so far.
  std::uint64_t calls() const noexcept { return calls_; }
  /// True if a call after the first `number` ones has left for another rank, or has ended here.
  bool has_worked_since(std::uint64_t number) const noexcept { return latest_ > number; }
  /// Notes a call that leaves for another rank, or something else that would have come later if
  /// calls were awaited.
  void note() noexcept { latest_ = ++calls_; }
  /// Notes that a call begins here, and returns its number.
  std::uint64_t begin() noexcept { return ++calls_; }
  /// Notes that call `number` has ended here.
  void end(std::uint64_t number) noexcept { latest_ = std::max(latest_, number); }

 private:
  std::uint64_t calls_ = 0;
  std::uint64_t latest_ = 0;  // number of the latest call that left or has ended
};

}  // namespace smp::server
