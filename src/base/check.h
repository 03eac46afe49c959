// base/check.h: SMP_REQUIRE for the caller's faults, SMP_ASSERT for ours, with values in the text.
#pragma once

#include <sstream>
#include <string>

#include "smp/error.h"

namespace smp::base {

/// Streams every argument into one string.
template <class... Parts>
std::string concat(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  return text.str();
}

}  // namespace smp::base

/// Throws `Kind` (an smp::Error) with the streamed parts unless `condition` holds.
#define SMP_REQUIRE_AS(Kind, condition, ...)                        \
  do {                                                              \
    if (!(condition)) throw Kind(::smp::base::concat(__VA_ARGS__)); \
  } while (false)

/// Throws UsageError with the streamed parts unless `condition` holds: for faults of the caller.
/// Say what was wrong, with values, and what to do.
#define SMP_REQUIRE(condition, ...) SMP_REQUIRE_AS(::smp::UsageError, condition, __VA_ARGS__)

/// Throws InternalError with the failed expression, its place and the streamed parts unless
/// `condition` holds: for bugs of this library.
#define SMP_ASSERT(condition, ...)                                                \
  SMP_REQUIRE_AS(::smp::InternalError, condition,                                 \
                 "smp internal error (please report): ", __FILE__, ":", __LINE__, \
                 ": " #condition ": ", ##__VA_ARGS__)
