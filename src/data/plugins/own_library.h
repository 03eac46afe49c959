// data/plugins/own_library.h: a shared object of ours, opened so that neither side's C++ libraries
// are seen by the other.
#pragma once

#include <string>

namespace smp::data {

/// A function of a shared object, or why there is none.
struct OwnLibrary {
  void* function = nullptr;
  std::string reason;
};

/// Opens the shared object `file` of this build for good, and looks for `function` in it. `remedy`
/// says what to do where the file is missing. Any thread; keep what it returns.
OwnLibrary open_own_library(const std::string& file, const char* function,
                            const std::string& remedy);

}  // namespace smp::data
