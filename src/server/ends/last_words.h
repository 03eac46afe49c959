// server/ends/last_words.h: what a process says that ends by an exception which nobody catches, by
// a signal, or by exit().
#pragma once

namespace smp::server {

/// Makes exceptions that nobody catches be printed with rank, module and microbatch where there are
/// any, and end the process with exit code 1. Idempotent.
void explain_uncaught_exceptions() noexcept;

/// Makes the report of a signal that ends the process (fiber/fault_report.h) name the rank, and the
/// module and microbatch that ran last. Idempotent.
void explain_faults() noexcept;

/// Makes exit() inside a module on this thread, whose fiber scheduler must be installed, name the
/// module and end the process with exit code 1. Idempotent.
void explain_exit_in_modules() noexcept;

}  // namespace smp::server
