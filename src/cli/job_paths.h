// cli/job_paths.h: a job on this machine that does nothing but connect its ranks, as the settings
// say: it shows whether MPI starts one, and over which paths its ranks reach each other.
#pragma once

#include <string>

namespace smp::cli {

/// Settings of the environment and of the file that SMP_CONFIG names, as far as paths hang on them.
struct PathSettings {
  std::string transport = "auto";
  bool lend_tensors = true;
  std::string origin;   ///< of `transport`: "SMP_TRANSPORT", "default"
  std::string problem;  ///< why the settings cannot be used, and these are the defaults; or empty

  /// With which transport a job is tried: ranks of one process have no paths to look at.
  std::string transport_of_job() const { return transport == "local" ? "auto" : transport; }
};
PathSettings path_settings();

struct TriedJob {
  bool started = false;  ///< by MPI
  bool worked = false;   ///< all ranks reached each other
  double seconds = 0;
  std::string paths;  ///< as show_paths() prints them
  std::string said;   ///< on stderr; no line twice
};
/// Starts `ranks` of this program as show_paths(). Takes a minute at most.
TriedJob try_job(int ranks);

/// Under mpirun: rank 0 prints over which paths each rank reaches the others, with its own
/// settings.
/// @throws PeerLostError  some rank does not reach the others.
void show_paths();

}  // namespace smp::cli
