// A process that has ended, for tests of what others say of it.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

namespace smp {

/// Its number, which nobody has any more.
inline int process_that_is_gone() {
  const auto process = ::fork();
  if (process == 0) std::_Exit(0);
  ::waitpid(process, nullptr, 0);
  return process;
}

}  // namespace smp
