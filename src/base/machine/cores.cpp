// base/machine/cores.cpp: the masks of Linux.
#include "base/machine/cores.h"

#include <sched.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <thread>

namespace smp::base {

std::string own_cores() {
  std::array<cpu_set_t, 8> own{};  // of 8192 cores
  if (::sched_getaffinity(0, sizeof own, own.data()) != 0) return {};
  std::string cores(own.size() * CPU_SETSIZE, '0');
  for (std::size_t core = 0; core < cores.size(); ++core) {
    if (CPU_ISSET_S(core, sizeof own, own.data())) cores[core] = '1';
  }
  return cores.substr(0, cores.find_last_of('1') + 1);
}

int num_cores(const std::vector<std::string>& sets) {
  std::string all;
  for (const auto& set : sets) {
    // It may run anywhere, as far as is known.
    if (set.empty()) return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
    all.resize(std::max(all.size(), set.size()), '0');
    for (std::size_t core = 0; core < set.size(); ++core)
      all[core] = std::max(all[core], set[core]);
  }
  return std::max(1, static_cast<int>(std::count(all.begin(), all.end(), '1')));
}

/// Limits of the groups above this process's own bind it as well.
double processors_of_cgroup() {
  std::ifstream own("/proc/self/cgroup");
  std::string line, path;
  while (std::getline(own, line)) {
    if (line.starts_with("0::")) path = line.substr(4);
  }
  double least = 0;
  const std::filesystem::path root("/sys/fs/cgroup");
  for (auto folder = root / path;; folder = folder.parent_path()) {
    std::ifstream file(folder / "cpu.max");
    double quota = 0, period = 0;
    if (file >> quota >> period && period > 0) {
      least = least == 0 ? quota / period : std::min(least, quota / period);
    }
    if (folder == root || !folder.has_relative_path()) return least;
  }
}

}  // namespace smp::base
