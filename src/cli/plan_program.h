// cli/plan_program.h: `smp plan --ranks N -- PROGRAM`: runs a training program as far as its plan.
#pragma once

#include <string>
#include <vector>

namespace smp::cli {

struct ProgramToPlan {
  int ranks = 0;
  std::string cluster;               ///< "trn1.32xlarge:64", which tells ranks, devices and links
  std::string folder;                ///< for plan.json and the pictures; empty: plans/PROGRAM-N
  std::string schedules;             ///< to compare; empty: none
  int microbatches = 0;              ///< of a step, for that; 0: as planned
  std::string devices;               ///< as the key of that name; empty: as the program sets it
  int stages_per_node = 0;           ///< as the key of that name; 0: as the program sets it
  std::vector<std::string> command;  ///< the program and its arguments
};

/// Removes "--" and what follows it from `argv`, and returns what followed.
std::vector<std::string> take_program(int& argc, char** argv);

/// True if a plan is to be made by `program`, false if one is to be printed from `file`.
/// @throws UsageError  neither or both was asked for, or half of it; microbatches without
/// schedules; a cluster, and what it tells.
bool wants_planning(const ProgramToPlan& program, const std::string& file);

/// Runs the program, which prints the plan and ends before it trains. Returns its exit status, or
/// 128 plus the number of the signal that ended it.
/// @throws UsageError     it cannot be started, or ended with status 0 and made no plan.
/// @throws ResourceError  the folder cannot be made.
int plan_program(const ProgramToPlan& program);

}  // namespace smp::cli
