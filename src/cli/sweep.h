// cli/sweep.h: `smp sweep --ranks N --smp.KEY A,B -- PROGRAM`: one program with different settings.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace smp::cli {

struct ProgramToSweep {
  std::vector<int> ranks;  ///< numbers of them; several are the first column of the table
  /// Settings and their values, as config/settings_grid.h reads them.
  std::vector<std::pair<std::string, std::string>> settings;
  double most_seconds = 600;         ///< of one run
  std::string folder;                ///< for runs and tables; empty: sweeps/PROGRAM-time
  std::string csv, json;             ///< further files for the table; empty: none
  std::vector<std::string> command;  ///< the program and its arguments
};

/// Runs the program with every combination of the settings, one after the other, and prints a row
/// for each. Returns 0 if some run ended in good order, else 1.
/// @throws UsageError     the call makes no sense, or the program cannot be started.
/// @throws ResourceError  a folder or file cannot be written.
int sweep(const ProgramToSweep& program);

}  // namespace smp::cli
