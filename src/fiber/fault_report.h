// fiber/fault_report.h: what a process says that a signal ends: who it was, and doing what.
#pragma once

#include <cstddef>

namespace smp::fiber {

/// Writes who and where the thread is ("rank 2, module encoder.block.3, microbatch 1"); called in a
/// signal handler.
using Describe = void (*)(char* text, std::size_t size);

/// From now on a fault of this process (SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT), its own or sent
/// from outside, is told in one line, and then does what it would have done. An overflow of a
/// fiber's stack is told with its remedy; for that the calling thread gets an alternate signal
/// stack. Idempotent, for each thread.
void install_fault_report(Describe describe);

}  // namespace smp::fiber
