// smp/report_error.h: how a program says what ended it.
#pragma once

#include <exception>

#include "smp/detail/export.h"

namespace smp {

/// Prints what ended this program on stderr, in one line that starts with "smp: ", without
/// LibTorch's C++ backtrace. If all ranks of the job throw the error (wrong settings, a plan that
/// cannot be made), only one rank prints it. For main():
///
///     } catch (const std::exception& error) {
///       smp::report_error(error);
///       return 1;
///     }
///
/// A program that catches nothing gets the same line. Works with and without a session.
SMP_API void report_error(const std::exception& error) noexcept;

}  // namespace smp
