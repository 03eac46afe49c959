// base/machine/host_name.cpp: see the header.
#include "base/machine/host_name.h"

#include <unistd.h>

namespace smp::base {

std::string host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 ? name : "";
}

}  // namespace smp::base
