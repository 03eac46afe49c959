// server/last_words.h: what a process says whose exception nobody catches.
#pragma once

namespace smp::server {

/// From now on such an exception is printed with rank, module and microbatch where there are any,
/// and the process ends with exit code 1. Idempotent.
void explain_uncaught_exceptions() noexcept;

/// From now on exit() inside a module on this thread, whose fiber scheduler is installed, names the
/// module and ends the process with exit code 1. Idempotent.
void explain_exit_in_modules() noexcept;

}  // namespace smp::server
