// What is said to a caller who is refused.
#pragma once

#include <exception>
#include <functional>
#include <string>

#include "smp/error.h"

namespace smp {

/// The text of the `Kind` of error that `run` throws; "accepted" if it throws nothing.
template <class Kind = UsageError>
[[nodiscard]] std::string refusal(const std::function<void()>& run) {
  try {
    try {
      run();
    } catch (const Kind& error) {
      return error.what();
    }
  } catch (const std::exception& error) {
    return std::string("another kind of error: ") + error.what();
  }
  return "accepted";
}

}  // namespace smp
