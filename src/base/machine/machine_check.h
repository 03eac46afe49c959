// base/machine/machine_check.h: whether a machine is fit for a job: what stands in its way or makes
// it slow, with what to do about it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace smp::base {

/// The GPUs of a machine.
struct GpuFacts {
  std::vector<std::string> names;  ///< of NVIDIA GPUs in the machine
  int seen_by_torch = -1;          ///< number that LibTorch can use; -1: it has no CUDA
};

/// The MPI of a machine, and how a job went that it was to start there.
struct MpiFacts {
  std::string version;       ///< first line of mpirun --version; empty: there is none
  bool starts = true;        ///< mpirun starts a job of MachineFacts::ranks, two at least
  double start_seconds = 0;  ///< seconds that this start takes
  bool paths_work = true;    ///< its ranks reached each other
  std::string said;          ///< the job's stderr, of mpirun and its ranks
};

/// The facts about a machine and the software installed there.
struct MachineFacts {
  int ranks = 0;                      ///< ranks that are to run there; 0: one per core
  int cores = 1;                      ///< cores that this process may use
  double processors = 0;              ///< processors its cgroup may use at once; 0: no limit
  std::int64_t memory = 0;            ///< bytes, of the machine or its cgroup; 0: unknown
  std::int64_t shared_room = -1;      ///< free bytes in /dev/shm; -1: there is none
  std::int64_t open_files = 0;        ///< open files that a process may have
  std::int64_t locked_memory = -1;    ///< bytes that a process may lock; -1: without limit
  bool fast_network = false;          ///< an InfiniBand or RoCE adapter is there
  bool reads_other_processes = true;  ///< processes of one user may read each other's memory
  std::string blas;                   ///< the BLAS of LibTorch: "mkl"
  double gflops = 0;                  ///< GFLOP/s of one core, for a product of float32 matrices
  GpuFacts gpus;
  std::int64_t longest_file = -1;  ///< bytes, that a process may write; -1: without limit
  MpiFacts mpi;
  std::string transport = "auto";  ///< the setting with which the job of `mpi` was started
};

/// One thing that was looked at.
struct MachineFinding {
  /// kNote: slower than it could be, or near a limit. kBroken: a job fails, as a rule.
  enum class Grade : std::uint8_t { kGood, kNote, kBroken };
  Grade grade;
  std::string what;    ///< "cores"
  std::string found;   ///< "2 for 4 ranks: they take turns"
  std::string remedy;  ///< empty if nothing is to be done
};

/// Judges a machine. The findings come in an order made for readers, the same for all machines. A
/// pure function.
std::vector<MachineFinding> check_machine(const MachineFacts& facts);

}  // namespace smp::base
