// base/memory/process_memory.cpp: /proc/self/status.
#include "base/memory/process_memory.h"

#include <fstream>
#include <string>

namespace smp::base {
namespace {

/// Returns the bytes of a line such as "VmRSS:	  1234 kB" of /proc/self/status; 0 if there is none.
std::int64_t bytes_of(const std::string& key) {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    std::int64_t kib = 0;
    if (word == key) return status >> kib ? kib * 1024 : 0;
  }
  return 0;
}

}  // namespace

std::int64_t resident_bytes() { return bytes_of("VmRSS:"); }
std::int64_t peak_resident_bytes() { return bytes_of("VmHWM:"); }
void forget_peak() { std::ofstream("/proc/self/clear_refs") << "5\n"; }

}  // namespace smp::base
