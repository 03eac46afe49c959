// smp/report_error.h: how a program says what ended it.
#pragma once

#include <exception>

#include "smp/detail/export.h"

namespace smp {

/// Prints what ended this program on stderr, in one line that starts with "smp: ", without
/// LibTorch's C++ backtrace. If all ranks of the job throw the error (wrong settings, a plan that
/// cannot be made), only one rank prints it, and the others return when it has; before smp::init
/// too, for a wrong flag of the program, among processes that a launcher has started. If the
/// program then exits with 0, or another multiple of 256, without a good step in between, its exit
/// code is
/// 1. For main():
///
///     } catch (const std::exception& error) {
///       smp::report_error(error);
///       return 1;
///     }
///
/// A program that catches nothing gets the same line, if it has called smp::init. Works with and
/// without a session. Any thread.
SMP_API void report_error(const std::exception& error) noexcept;

}  // namespace smp
