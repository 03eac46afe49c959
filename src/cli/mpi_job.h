// cli/mpi_job.h: a program on several MPI ranks of this machine, with a deadline.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace smp::cli {

struct MpiJob {
  int ranks = 1;
  std::vector<std::string> command;  ///< the program and its arguments
  /// Variables that the ranks get beside those of this process.
  std::vector<std::pair<std::string, std::string>> environment;
  std::string log;          ///< the file that stdout and stderr go to; what is there is lost
  double most_seconds = 0;  ///< after which the job is ended
};

struct EndedJob {
  int status = 0;  ///< of mpirun; 128 plus the number of the signal that ended it
  bool timed_out = false;
  double seconds = 0;
};

/// @throws UsageError  mpirun, or the program of that name, is not there.
void require_startable(const std::string& program);

/// Runs the job to its end, without a terminal; it ends too when this process does.
/// @throws UsageError  the log cannot be written, or no process started.
EndedJob run_job(const MpiJob& job);

/// Returns why a job failed, in one line: what the library says ended it, else the first line of
/// its log that speaks of an error, else the last line; "" if the log has none of these.
std::string first_reason(const std::string& log);

}  // namespace smp::cli
