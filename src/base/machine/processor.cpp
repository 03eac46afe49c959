// base/machine/processor.cpp: see the header.
#include "base/machine/processor.h"

#include <sys/utsname.h>

#include <fstream>

namespace smp::base {

std::string processor_name(const std::string& cpuinfo) {
  std::ifstream file(cpuinfo);
  for (std::string line; std::getline(file, line);) {
    const auto colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  struct utsname system {};
  return ::uname(&system) == 0 ? system.machine : "unknown";
}

}  // namespace smp::base
