// server/last_words.h: what a process says whose exception nobody catches.
#pragma once

namespace smp::server {

/// From now on such an exception is printed with rank, module and microbatch where there are any,
/// and the process ends with exit code 1. Idempotent.
void explain_uncaught_exceptions() noexcept;

}  // namespace smp::server
