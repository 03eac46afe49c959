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
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "base/machine/cores.h"
#include "base/machine/machine_check.h"
#include "base/machine/neuron_check.h"
#include "base/machine/neuron_files.h"
#include "base/machine/transport_check.h"
#include "base/memory/cross_memory.h"
#include "base/memory/machine_memory.h"
#include "base/memory/shared_memory_refusal.h"
#include "cli/job_paths.h"
#include "cli/shell.h"
#include "d2d/job/wire_libraries.h"

namespace smp::cli {
namespace {

namespace fs = std::filesystem;

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

/// Returns the model name of each NVIDIA GPU, as the driver reports it in /proc.
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

/// Returns the number of CUDA devices that LibTorch sees, or -1 if it was built without CUDA.
int gpus_of_torch() {
  constexpr auto kCuda = c10::DeviceType::CUDA;
  if (!c10::impl::hasDeviceGuardImpl(kCuda)) return -1;
  return c10::impl::VirtualGuardImpl(kCuda).deviceCount();
}

// ---- transports --------------------------------------------------------------------------------

/// Returns the environment variables of the libraries that carry bytes (UCX, libfabric, Open MPI).
std::map<std::string, std::string> transport_variables() {
  std::map<std::string, std::string> found;
  for (char** each = environ; *each != nullptr; ++each) {
    const std::string variable = *each;
    const auto name = variable.substr(0, variable.find('='));
    const bool theirs =
        name.starts_with("UCX_") || name.starts_with("FI_") || name.starts_with("OMPI_MCA_");
    if (theirs) found[name] = variable.substr(std::min(variable.size(), name.size() + 1));
  }
  return found;
}

/// Networks as TCP names them, and adapters.
std::vector<std::string> interfaces() {
  std::vector<std::string> names;
  for (const char* const folder : {"/sys/class/net", "/sys/class/infiniband"}) {
    std::error_code error;
    for (const auto& each : fs::directory_iterator(folder, error)) {
      names.push_back(each.path().filename().string());
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

// ---- all together ------------------------------------------------------------------------------

base::MachineFacts look_at_machine(int ranks) {
  base::MachineFacts facts;
  facts.ranks = ranks;
  facts.cores = base::num_cores({base::own_cores()});
  facts.processors = base::processors_of_cgroup();
  facts.memory = base::machine_memory();
  facts.shared_room = shared_room();
  facts.open_files = limit_of(RLIMIT_NOFILE);
  facts.locked_memory = limit_of(RLIMIT_MEMLOCK);
  facts.longest_file = base::longest_file();
  facts.fast_network = has_fast_network();
  facts.reads_other_processes = processes_read_each_other();
  facts.blas = name_of_blas();
  facts.gflops = speed_of_products();
  facts.gpus.names = gpus_of_driver();
  facts.gpus.seen_by_torch = gpus_of_torch();
  facts.mpi.version = first_line(run("timeout 10 mpirun --version 2>/dev/null").text);
  return facts;
}

TriedJob start_job(const PathSettings& settings, base::MachineFacts& facts) {
  facts.transport = settings.transport_of_job();
  if (facts.mpi.version.empty()) return {};
  auto job = try_job(std::max(2, facts.ranks));
  facts.mpi.starts = job.started;
  facts.mpi.start_seconds = job.seconds;
  facts.mpi.paths_work = job.worked;
  facts.mpi.said = job.said;
  return job;
}

base::TransportFacts look_at_transports(const base::MachineFacts& machine) {
  base::TransportFacts facts;
  facts.transport = machine.transport;
  facts.cores =
      machine.processors > 0 ? std::min<double>(machine.processors, machine.cores) : machine.cores;
  facts.ranks = machine.ranks > 0 ? machine.ranks : std::max(1, static_cast<int>(facts.cores));
  facts.reads_other_processes = machine.reads_other_processes;
  facts.fast_network = machine.fast_network;
  facts.environment = transport_variables();
  facts.interfaces = interfaces();
  facts.ucx = d2d::look_at_ucx();  // from here on the environment has what wires set
  facts.ofi = d2d::look_at_ofi();
  return facts;
}

base::MachineFinding finding_of(const PathSettings& settings) {
  using Grade = base::MachineFinding::Grade;
  if (!settings.problem.empty()) {
    return {Grade::kBroken, "settings", settings.problem, "`smp config` lists all settings"};
  }
  const auto found = base::concat("transport = ", settings.transport, " (", settings.origin, ")");
  if (settings.transport != "local") return {Grade::kGood, "settings", found, {}};
  return {Grade::kNote, "settings",
          found + ": all ranks are in one process, started by smp::run_local; looked at is auto",
          "for ranks that mpirun starts, unset it"};
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
  const auto settings = path_settings();
  auto machine = look_at_machine(ranks);
  const auto job = start_job(settings, machine);
  auto findings = base::check_machine(machine);
  for (auto& each : base::check_neuron(base::look_at_neuron("/"))) {
    findings.push_back(std::move(each));
  }
  findings.push_back(finding_of(settings));
  for (auto& each : base::check_transports(look_at_transports(machine))) {
    findings.push_back(std::move(each));
  }
  bool broken = false;
  for (const auto& each : findings) {
    std::printf("%-7s %-14s %s\n", word_of(each.grade), each.what.c_str(), each.found.c_str());
    if (!each.remedy.empty()) std::printf("%-22s -> %s\n", "", each.remedy.c_str());
    broken |= each.grade == base::MachineFinding::Grade::kBroken;
  }
  std::fputs(job.paths.c_str(), stdout);
  if (!job.said.empty()) std::printf("        the job said:\n%s", job.said.c_str());
  return broken ? 1 : 0;
}

}  // namespace smp::cli
