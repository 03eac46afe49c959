// cli/doctor.cpp: asking the machine.
#include "cli/doctor.h"

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/rand.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <system_error>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "base/cores.h"
#include "base/cross_memory.h"
#include "base/machine_check.h"
#include "base/machine_memory.h"
#include "d2d/channel.h"
#include "d2d/job_wires.h"
#include "d2d/mpi_session.h"

namespace smp::cli {
namespace {

namespace fs = std::filesystem;

/// What a shell command prints, and its exit status; -1: it could not be started.
struct Output {
  int status = -1;
  std::string text;
};

Output run(const std::string& command) {
  Output output;
  FILE* const pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) return output;
  std::array<char, 4096> part{};
  while (std::fgets(part.data(), part.size(), pipe) != nullptr) output.text += part.data();
  const int status = ::pclose(pipe);
  output.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return output;
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

// ---- limits ------------------------------------------------------------------------------------

std::int64_t limit_of(int resource) {
  rlimit limit{};
  if (::getrlimit(static_cast<__rlimit_resource>(resource), &limit) != 0) return 0;
  return limit.rlim_cur == RLIM_INFINITY ? -1 : static_cast<std::int64_t>(limit.rlim_cur);
}

std::int64_t shared_room() {
  struct statvfs room {};
  if (::statvfs("/dev/shm", &room) != 0) return -1;
  return static_cast<std::int64_t>(room.f_bavail) * static_cast<std::int64_t>(room.f_frsize);
}

/// Has one process read the memory of another, of which it is no parent, as ranks are.
bool processes_read_each_other() {
  static const std::uint64_t known = 0x736d70;
  const auto address = reinterpret_cast<std::uint64_t>(&known);
  const pid_t owner = ::fork();
  if (owner == 0) {
    for (;;) ::pause();
  }
  const pid_t reader = owner < 0 ? -1 : ::fork();
  if (reader == 0) {
    std::uint64_t read = 0;
    const auto into = std::as_writable_bytes(std::span(&read, 1));
    const bool can = base::read_process_memory(owner, address, into) && read == known;
    ::_exit(can ? 0 : 1);
  }
  int status = 1;
  if (reader > 0) ::waitpid(reader, &status, 0);
  if (owner > 0) {
    ::kill(owner, SIGKILL);
    ::waitpid(owner, nullptr, 0);
  }
  return reader > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

bool has_fast_network() {
  std::error_code error;
  return fs::exists("/sys/class/infiniband", error) &&
         !fs::is_empty("/sys/class/infiniband", error);
}

// ---- LibTorch ----------------------------------------------------------------------------------

/// "mkl", as LibTorch was built.
std::string name_of_blas() {
  const std::string config = at::show_config(), key = "BLAS_INFO=";
  const auto found = config.find(key);
  if (found == std::string::npos) return {};
  const auto start = found + key.size();
  return config.substr(start, config.find_first_of(", \n", start) - start);
}

/// GFLOP/s of one core, the best of several products of 512 x 512 float32 numbers.
double speed_of_products() {
  constexpr std::int64_t kSize = 512;
  at::set_num_threads(1);
  const auto left = at::rand({kSize, kSize}), right = at::rand({kSize, kSize});
  const base::SteadyClock clock;
  double best = 0;
  for (int i = 0; i < 20; ++i) {
    const auto start = clock.now();
    at::mm(left, right);
    const auto nanoseconds = static_cast<double>(clock.now() - start);
    best = std::max(best, 2.0 * kSize * kSize * kSize / nanoseconds);
  }
  return best;
}

// ---- GPUs --------------------------------------------------------------------------------------

/// As NVIDIA's driver names them.
std::vector<std::string> gpus_of_driver() {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& gpu : fs::directory_iterator("/proc/driver/nvidia/gpus", error)) {
    std::ifstream file(gpu.path() / "information");
    const std::string key = "Model:";
    for (std::string line; std::getline(file, line);) {
      if (!line.starts_with(key)) continue;
      names.push_back(
          line.substr(std::min(line.size(), line.find_first_not_of(" \t", key.size()))));
    }
  }
  return names;
}

/// -1: it has no CUDA.
int gpus_of_torch() {
  constexpr auto kCuda = c10::DeviceType::CUDA;
  if (!c10::impl::hasDeviceGuardImpl(kCuda)) return -1;
  return c10::impl::VirtualGuardImpl(kCuda).deviceCount();
}

// ---- MPI ---------------------------------------------------------------------------------------

/// Starts `ranks` of this program as show_paths().
Output start_job(int ranks) {
  const auto self = fs::read_symlink("/proc/self/exe").string();
  const char* const as_root =
      ::geteuid() == 0 ? "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 " : "";
  return run(base::concat(as_root, "timeout 60 mpirun --oversubscribe -n ", ranks, " '", self,
                          "' doctor --paths 2>/dev/null"));
}

base::MachineFacts look(int ranks, std::string& paths) {
  base::MachineFacts facts;
  facts.ranks = ranks;
  facts.cores = base::num_cores({base::own_cores()});
  facts.processors = base::processors_of_cgroup();
  facts.memory = base::machine_memory();
  facts.shared_room = shared_room();
  facts.open_files = limit_of(RLIMIT_NOFILE);
  facts.locked_memory = limit_of(RLIMIT_MEMLOCK);
  facts.fast_network = has_fast_network();
  facts.reads_other_processes = processes_read_each_other();
  facts.blas = name_of_blas();
  facts.gflops = speed_of_products();
  facts.gpus = gpus_of_driver();
  facts.torch_gpus = gpus_of_torch();
  facts.mpi = first_line(run("timeout 10 mpirun --version 2>/dev/null").text);
  if (facts.mpi.empty()) return facts;
  const base::SteadyClock clock;
  const auto start = clock.now();
  const auto job = start_job(std::max(2, ranks));
  facts.mpi_starts = job.status == 0;
  facts.mpi_start_seconds = static_cast<double>(clock.now() - start) / base::kSecond;
  paths = job.text;
  return facts;
}

const char* word_of(base::MachineFinding::Grade grade) {
  switch (grade) {
    case base::MachineFinding::Grade::kGood:
      return "ok";
    case base::MachineFinding::Grade::kNote:
      return "note";
    case base::MachineFinding::Grade::kBroken:
      break;
  }
  return "BROKEN";
}

}  // namespace

int examine_machine(int ranks) {
  std::string paths;
  const auto findings = base::check_machine(look(ranks, paths));
  bool broken = false;
  for (const auto& each : findings) {
    std::printf("%-7s %-14s %s\n", word_of(each.grade), each.what.c_str(), each.found.c_str());
    if (!each.remedy.empty()) std::printf("%-22s -> %s\n", "", each.remedy.c_str());
    broken |= each.grade == base::MachineFinding::Grade::kBroken;
  }
  std::fputs(paths.c_str(), stdout);
  return broken ? 1 : 0;
}

void show_paths() {
  const d2d::MpiSession session;
  d2d::Channel channel(d2d::fastest_routes(session));
  const auto& routes = channel.routes();
  std::ostringstream text;
  for (const GlobalRank peer : routes.members()) {
    if (peer == routes.rank()) continue;
    text << "        rank " << routes.rank() << " to " << peer << "    over " << routes.path(peer)
         << '\n';
  }
  if (routes.rank() == GlobalRank(0)) std::fputs(text.str().c_str(), stdout);
  channel.close(60 * base::kSecond);
}

}  // namespace smp::cli
