// fiber/fault_report.h: what a process says that a signal ends: who it was, and doing what.
#pragma once

#include <cstddef>

namespace smp::fiber {

/// Writes which rank it is and where the thread is ("rank 2, module encoder.block.3, microbatch
/// 1"). Called in a signal handler.
using Describe = void (*)(char* text, std::size_t size);

/// Installs handlers that report a fault of this process (SIGSEGV, SIGBUS, SIGFPE, SIGILL,
/// SIGABRT), its own or sent from outside, in one line on stderr, and then let the signal act as
/// before. The report of an overflow of a fiber's stack names the remedy; for that the calling
/// thread gets an alternate signal stack. Idempotent, for each thread.
void install_fault_report(Describe describe);

}  // namespace smp::fiber
