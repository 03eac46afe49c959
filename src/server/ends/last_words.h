// server/ends/last_words.h: what a process says that ends by an exception which nobody catches, by
// a signal, or by exit().
#pragma once

namespace smp::server {

/// From now on such an exception is printed with rank, module and microbatch where there are any,
/// and the process ends with exit code 1. Idempotent.
void explain_uncaught_exceptions() noexcept;

/// From now on a signal that ends the process (fiber/fault_report.h) is told with the rank, and the
/// module and microbatch that ran last. Idempotent.
void explain_faults() noexcept;

/// From now on exit() inside a module on this thread, whose fiber scheduler is installed, names the
/// module and ends the process with exit code 1. Idempotent.
void explain_exit_in_modules() noexcept;

}  // namespace smp::server
