// base/machine/machine_check.cpp: one function a finding.
#include "base/machine/machine_check.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>

#include "base/check.h"
#include "base/text/byte_text.h"
#include "base/text/excerpt.h"

namespace smp::base {
namespace {

using Grade = MachineFinding::Grade;

constexpr std::int64_t kMiB = 1 << 20;
constexpr std::int64_t kGiB = 1 << 30;
/// Bytes needed in /dev/shm per rank: Open MPI maps about 4 MiB for each.
constexpr std::int64_t kSharedRoomOfRank = 5 * kMiB;
/// Open files of mpirun, per rank and in addition, as counted with 2, 4 and 8 ranks; a rank itself
/// has 19.
constexpr std::int64_t kFilesOfRank = 3, kFilesOfLauncher = 24;
/// GFLOP/s of one core; cores of the last ten years reach more with a BLAS made for them.
constexpr double kFastGflops = 20;
/// Locked memory in bytes for the registered buffers of an adapter; with less it refuses or falls
/// back to slow paths.
constexpr std::int64_t kLockedMemory = kGiB;
/// Seconds; a start that takes longer is most of a short job.
constexpr double kSlowStart = 3;

std::string rounded(double value, const char* unit) {
  char text[64];
  std::snprintf(text, sizeof text, "%.3g %s", value, unit);
  return text;
}

double usable_cores(const MachineFacts& facts) {
  return facts.processors > 0 ? std::min<double>(facts.processors, facts.cores) : facts.cores;
}

int ranks_of(const MachineFacts& facts) {
  return facts.ranks > 0 ? facts.ranks : std::max(1, static_cast<int>(usable_cores(facts)));
}

std::string for_ranks(const MachineFacts& facts) {
  const int ranks = ranks_of(facts);
  return concat(" for ", ranks, ranks == 1 ? " rank" : " ranks");
}

MachineFinding cores(const MachineFacts& facts) {
  std::string found = concat(facts.cores, for_ranks(facts));
  const bool limited = usable_cores(facts) < facts.cores;
  if (limited) found += concat(", of which the cgroup lets ", facts.processors, " run at once");
  if (ranks_of(facts) <= usable_cores(facts)) return {Grade::kGood, "cores", found, {}};
  return {Grade::kNote, "cores", found + ": they take turns, and a message waits for its receiver",
          "fewer ranks, or mpirun --oversubscribe --mca mpi_yield_when_idle 1 to try things out"};
}

MachineFinding memory(const MachineFacts& facts) {
  if (facts.memory == 0) return {Grade::kGood, "memory", "unknown", {}};
  return {Grade::kGood,
          "memory",
          byte_text(facts.memory) + ", " + byte_text(facts.memory / ranks_of(facts)) + " a rank",
          {}};
}

MachineFinding products(const MachineFacts& facts) {
  const auto found = concat(facts.blas.empty() ? "no BLAS" : facts.blas, ", ",
                            rounded(facts.gflops, "GFLOP/s"), " a core");
  if (facts.gflops == 0 || facts.gflops >= kFastGflops) {
    return {Grade::kGood, "products", found, {}};
  }
  return {Grade::kNote, "products", found + ": a core with a fast BLAS reaches more",
          "if the machine is idle, use PyTorch's own LibTorch, which has MKL or OpenBLAS: unset "
          "SMP_TORCH_DIR and build again"};
}

/// Returns the names with their numbers, as "2 x NVIDIA H100".
std::string names_of(const std::vector<std::string>& gpus) {
  std::map<std::string, int> counts;
  for (const auto& name : gpus) ++counts[name];
  std::string text;
  for (const auto& [name, count] : counts) {
    text += concat(text.empty() ? "" : ", ", count, " x ", name);
  }
  return text;
}

std::string gpus_text(const MachineFacts& facts) {
  if (facts.gpus.names.empty()) return concat(facts.gpus.seen_by_torch);  // as in some containers
  const bool all = facts.gpus.seen_by_torch == static_cast<int>(facts.gpus.names.size());
  if (all || facts.gpus.seen_by_torch <= 0) return names_of(facts.gpus.names);
  return concat(names_of(facts.gpus.names), ", of which LibTorch sees ", facts.gpus.seen_by_torch);
}

/// Adds a finding about GPUs; none for a machine without, since none are needed.
void add_gpus(const MachineFacts& facts, std::vector<MachineFinding>& findings) {
  if (facts.gpus.names.empty() && facts.gpus.seen_by_torch <= 0) return;
  const auto found = gpus_text(facts);
  if (facts.gpus.seen_by_torch < 0) {
    findings.push_back({Grade::kNote, "GPUs", found + ", and this LibTorch is built without CUDA",
                        "build with one that has it (SMP_TORCH_DIR, docs/gpus.md)"});
  } else if (facts.gpus.seen_by_torch == 0) {
    findings.push_back({Grade::kNote, "GPUs", found + ", of which LibTorch sees none",
                        "see what nvidia-smi says, and whether CUDA_VISIBLE_DEVICES hides them"});
  } else if (ranks_of(facts) > facts.gpus.seen_by_torch) {
    findings.push_back({Grade::kNote, "GPUs",
                        concat(found, for_ranks(facts), ": with device = cuda some share one"),
                        concat("start ", facts.gpus.seen_by_torch, " ranks on this machine")});
  } else {
    findings.push_back({Grade::kGood, "GPUs", found, {}});
  }
}

/// Returns what matters of the output of a job that failed: an error of this library, or else the
/// first paragraph.
std::string gist_of(const std::string& said) {
  constexpr std::size_t kMost = 400;
  const std::string error = "error: ";
  std::string paragraph;
  bool ended = false;
  for (std::size_t start = 0, end; start < said.size(); start = end + 1) {
    end = std::min(said.find('\n', start), said.size());
    const auto line = said.substr(start, end - start);
    if (line.starts_with(error)) return excerpt(line.substr(error.size()), kMost);
    const bool empty = line.find_first_not_of("- \t\r") == std::string::npos;
    ended |= empty && !paragraph.empty();
    if (!empty && !ended) paragraph += (paragraph.empty() ? "" : " ") + line;
  }
  return paragraph.empty() ? "it does not say why" : excerpt(paragraph, kMost);
}

MachineFinding mpi(const MachineFacts& facts) {
  if (facts.mpi.version.empty()) {
    return {Grade::kBroken, "MPI", "there is no mpirun in PATH",
            "apt-get install openmpi-bin libopenmpi-dev"};
  }
  if (!facts.mpi.starts) {
    return {Grade::kBroken, "MPI",
            concat(facts.mpi.version, ", which cannot start a job here: ", gist_of(facts.mpi.said)),
            "see what `mpirun -n 2 --oversubscribe true` says; as root add --allow-run-as-root"};
  }
  const auto found =
      concat(facts.mpi.version, ", starts in ", rounded(facts.mpi.start_seconds, "s"));
  if (facts.mpi.start_seconds < kSlowStart) return {Grade::kGood, "MPI", found, {}};
  return {Grade::kNote, "MPI", found,
          "on one machine --mca pml ob1 --mca btl vader,self looks for no network"};
}

/// Adds a finding about the paths between the ranks of the job that MPI started.
void add_paths(const MachineFacts& facts, std::vector<MachineFinding>& findings) {
  if (facts.mpi.version.empty() || !facts.mpi.starts) return;
  const auto with = "with transport = " + facts.transport;
  if (facts.mpi.paths_work) {
    findings.push_back({Grade::kGood, "paths", with + " all ranks reach each other", {}});
    return;
  }
  const auto said = gist_of(facts.mpi.said);  // an error says what to do after its first "; "
  const auto end = said.find("; ");
  findings.push_back({Grade::kBroken, "paths", with + " a job fails: " + said.substr(0, end),
                      end == std::string::npos ? "SMP_TRANSPORT=auto" : said.substr(end + 2)});
}

MachineFinding shared_memory(const MachineFacts& facts) {
  const auto wanted = kSharedRoomOfRank * ranks_of(facts);
  if (facts.shared_room >= wanted) {
    return {Grade::kGood, "/dev/shm", byte_text(facts.shared_room) + " free", {}};
  }
  const auto found = facts.shared_room < 0
                         ? std::string("there is none")
                         : concat(byte_text(facts.shared_room), " free, Open MPI wants ",
                                  byte_text(wanted), for_ranks(facts));
  return {Grade::kBroken, "/dev/shm", found,
          "docker run --shm-size=1g, or mpirun --mca btl_vader_backing_directory FOLDER"};
}

MachineFinding reading(const MachineFacts& facts) {
  if (facts.reads_other_processes) {
    return {Grade::kGood,
            "large tensors",
            "that are not lent are read by their receiver, copied once",
            {}};
  }
  return {Grade::kNote, "large tensors",
          "that are not lent are copied twice: processes may not read each other's memory",
          "sysctl kernel.yama.ptrace_scope=0; in a container --cap-add SYS_PTRACE"};
}

MachineFinding files(const MachineFacts& facts) {
  const auto wanted = kFilesOfLauncher + kFilesOfRank * ranks_of(facts);
  const auto found = concat(facts.open_files, " a process");
  if (facts.open_files >= wanted) return {Grade::kGood, "open files", found, {}};
  return {Grade::kNote, "open files",
          concat(found, ", about ", wanted, " are needed", for_ranks(facts)),
          concat("ulimit -n ", 2 * wanted)};
}

/// Judges the longest file that a process may write: memory that processes share counts as a file.
MachineFinding longest_file(const MachineFacts& facts) {
  if (facts.longest_file < 0) return {Grade::kGood, "longest file", "without limit", {}};
  return {Grade::kNote, "longest file",
          byte_text(facts.longest_file) +
              ": ranks lend no tensors, and may not share memory at all, if that is too little",
          "ulimit -f unlimited"};
}

MachineFinding locked(const MachineFacts& facts) {
  const auto found =
      facts.locked_memory < 0 ? std::string("without limit") : byte_text(facts.locked_memory);
  const bool enough = facts.locked_memory < 0 || facts.locked_memory >= kLockedMemory;
  if (enough || !facts.fast_network) return {Grade::kGood, "locked memory", found, {}};
  return {Grade::kNote, "locked memory", found + ", and there is an InfiniBand or RoCE adapter",
          "ulimit -l unlimited (memlock in /etc/security/limits.conf)"};
}

}  // namespace

std::vector<MachineFinding> check_machine(const MachineFacts& facts) {
  std::vector<MachineFinding> findings{cores(facts), memory(facts), products(facts)};
  add_gpus(facts, findings);
  findings.push_back(mpi(facts));
  add_paths(facts, findings);
  for (const auto& each :
       {shared_memory(facts), reading(facts), files(facts), longest_file(facts), locked(facts)}) {
    findings.push_back(each);
  }
  return findings;
}

}  // namespace smp::base
