// base/memory/machine_memory.cpp: /proc/meminfo, and the limits of cgroups of version 2 and 1.
#include "base/memory/machine_memory.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>

namespace smp::base {
namespace {

constexpr std::int64_t kUnknown = std::numeric_limits<std::int64_t>::max();

/// Returns the number that stands alone in a file; kUnknown for "max" and missing files.
std::int64_t limit_in(const std::filesystem::path& file) {
  std::int64_t bytes = 0;
  return std::ifstream(file) >> bytes && bytes > 0 ? bytes : kUnknown;
}

std::int64_t total_memory(const std::string& root) {
  std::ifstream file(root + "/proc/meminfo");
  std::string key;
  std::int64_t kib = 0;
  return file >> key >> kib && key == "MemTotal:" ? kib * 1024 : kUnknown;
}

/// Returns the smallest limit that binds a group: its own, or that of a group above it. A container
/// sees itself as the topmost group.
std::int64_t smallest_limit(const std::filesystem::path& tree, std::filesystem::path group,
                            const char* name) {
  auto smallest = limit_in(tree / name);
  for (; group.has_relative_path(); group = group.parent_path()) {
    smallest = std::min(smallest, limit_in(tree / group.relative_path() / name));
  }
  return smallest;
}

std::int64_t cgroup_limit(const std::string& root) {
  auto smallest = kUnknown;
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const auto path = line.substr(line.rfind(':') + 1);
    if (line.starts_with("0::")) {
      smallest = std::min(smallest, smallest_limit(root + "/sys/fs/cgroup", path, "memory.max"));
    } else if (line.find(":memory:") != std::string::npos) {
      smallest = std::min(
          smallest, smallest_limit(root + "/sys/fs/cgroup/memory", path, "memory.limit_in_bytes"));
    }
  }
  return smallest;
}

}  // namespace

std::int64_t machine_memory(const std::string& root) {
  const auto bytes = std::min(total_memory(root), cgroup_limit(root));
  return bytes == kUnknown ? 0 : bytes;
}

}  // namespace smp::base
