// How many damaged files a test makes for a reader.
#pragma once

#include <cstdlib>

namespace smp {

/// SMP_DAMAGED_FILES, if it is set.
inline int damaged_files(int usual) {
  const char* wanted = std::getenv("SMP_DAMAGED_FILES");
  return wanted == nullptr ? usual : std::atoi(wanted);
}

}  // namespace smp
