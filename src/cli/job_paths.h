// cli/job_paths.h: a job on this machine that does nothing but connect its ranks, as the settings
// say: it shows whether MPI starts one, and over which paths its ranks reach each other.
#pragma once

#include <string>

namespace smp::cli {

/// The settings of the environment, and of the file that SMP_CONFIG names, that decide over paths.
struct PathSettings {
  std::string transport = "auto";
  bool lend_tensors = true;
  std::string origin;   ///< origin of `transport`, as in "SMP_TRANSPORT" or "default"
  std::string problem;  ///< why the settings are unusable and these are defaults; or empty

  /// The transport with which the job is tried: "auto" in the place of "local", since ranks of one
  /// process have no paths to look at.
  std::string transport_of_job() const { return transport == "local" ? "auto" : transport; }
};
PathSettings path_settings();

struct TriedJob {
  bool started = false;  ///< MPI started it
  bool worked = false;   ///< all ranks reached each other
  double seconds = 0;
  std::string paths;  ///< as show_paths() prints them
  std::string said;   ///< its lines on stderr, without repetitions
};
/// Runs this program as show_paths() on `ranks` MPI ranks of this machine. Takes a minute at most.
TriedJob try_job(int ranks);

/// Runs on each rank of a job under mpirun: rank 0 prints over which paths each rank reaches the
/// others, with its own settings.
/// @throws PeerLostError  some rank does not reach the others.
void show_paths();

}  // namespace smp::cli
