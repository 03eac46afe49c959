// server/backward/missing_derivative.h: more words for LibTorch's error that an operator cannot be
// differentiated twice. Threads: the rank's.
#pragma once

namespace smp::server {

/// Adds to the exception that is being handled, if it is that error of an attention kernel: the
/// execution that runs, and the setting of LibTorch with which it can.
void explain_missing_derivative() noexcept;

}  // namespace smp::server
