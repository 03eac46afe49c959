// A child process whose stderr somebody watches.
#pragma once

#include <functional>
#include <string>

namespace smp {

/// Who reads the child's stderr.
enum class Watcher {
  kTerminal,
  kPipe,
  kLauncherOnTerminal,  ///< a launcher of MPI with a terminal reads it from a pipe
  kLauncherOnPipe,
};

/// Runs `work` in a child process, without SMP_PROGRESS, and returns what was written to its
/// stderr.
std::string seen_by(Watcher watcher, const std::function<void()>& work);

}  // namespace smp
