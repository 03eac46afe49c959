// cli/plan_program.cpp: passes the request on in the environment, and looks for the plan
// afterwards.
#include "cli/plan_program.h"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string_view>

#include "api/planning/cluster_machine.h"
#include "api/rank/plan_request.h"
#include "base/check.h"
#include "base/cluster/cluster.h"
#include "base/files.h"

namespace smp::cli {

std::vector<std::string> take_program(int& argc, char** argv) {
  for (int at = 1; at < argc; ++at) {
    if (std::string_view(argv[at]) != "--") continue;
    std::vector<std::string> command(argv + at + 1, argv + argc);
    argc = at;
    argv[argc] = nullptr;
    return command;
  }
  return {};
}

bool wants_planning(const ProgramToPlan& program, const std::string& file) {
  const bool make = !program.command.empty();
  SMP_REQUIRE(make || (program.ranks == 0 && program.cluster.empty()),
              program.cluster.empty() ? "plan --ranks" : "plan --cluster",
              " needs a program: -- PROGRAM ARGUMENTS");
  SMP_REQUIRE(make || !file.empty(),
              "plan needs the plan.json of a run, or --ranks N -- PROGRAM ARGUMENTS");
  SMP_REQUIRE(!make || file.empty(), "plan either prints ", file, " or plans ",
              make ? program.command.front() : "", ", not both");
  SMP_REQUIRE(!make || program.ranks > 0 || !program.cluster.empty(),
              "plan needs --ranks N to plan for, or --cluster NAME:NODES");
  SMP_REQUIRE(program.cluster.empty() ||
                  (program.ranks == 0 && program.devices.empty() && program.stages_per_node == 0),
              "plan --cluster tells ranks, devices and nodes: leave out --ranks, --devices and "
              "--stages-per-node");
  SMP_REQUIRE(make || (program.devices.empty() && program.stages_per_node == 0),
              "plan --devices and --stages-per-node are for a plan that is made: add --ranks N -- "
              "PROGRAM ARGUMENTS");
  SMP_REQUIRE(program.microbatches == 0 || !program.schedules.empty(),
              "plan --microbatches is for --schedule");
  return make;
}

namespace {

namespace fs = std::filesystem;

/// When the plan in `folder`, or that of the first of several models, was written last.
std::vector<fs::file_time_type> plan_times(const fs::path& folder) {
  std::vector<fs::file_time_type> times;
  for (const auto& file : {folder / "plan.json", folder / "model-1" / "plan.json"}) {
    std::error_code error;
    const auto time = fs::last_write_time(file, error);
    times.push_back(error ? fs::file_time_type::min() : time);
  }
  return times;
}

/// The folder of a plan, made before a program has run for it; taken away again, with those above
/// it that were made too, if nothing came.
class PlanFolder {
 public:
  explicit PlanFolder(const std::string& path) {
    std::error_code unknown;
    for (fs::path each = path; !each.empty() && !fs::exists(each, unknown) && !unknown;
         each = each.parent_path()) {
      made_.push_back(each);
    }
    try {
      base::create_directories(path);
    } catch (const ResourceError& error) {
      throw ResourceError(base::concat(error.what(), "; --out names another folder"));
    }
  }
  ~PlanFolder() {
    std::error_code not_empty;
    for (const auto& each : made_) fs::remove(each, not_empty);
  }
  PlanFolder(const PlanFolder&) = delete;
  PlanFolder& operator=(const PlanFolder&) = delete;

 private:
  std::vector<fs::path> made_;  // the innermost first
};

int run_to_its_end(const std::vector<std::string>& command) {
  std::vector<char*> arguments;
  for (const std::string& argument : command) {
    arguments.push_back(const_cast<char*>(argument.c_str()));
  }
  arguments.push_back(nullptr);
  pid_t child = 0;
  const int error =
      ::posix_spawnp(&child, arguments[0], nullptr, nullptr, arguments.data(), environ);
  SMP_REQUIRE(error == 0, "cannot start ", command.front(), ": ", std::strerror(error));
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

}  // namespace

int plan_program(const ProgramToPlan& asked) {
  ProgramToPlan program = asked;
  std::string of_folder = std::to_string(program.ranks);
  ::unsetenv(kPlanClusterVariable);
  if (!program.cluster.empty()) {
    const auto cluster = base::Cluster::named(program.cluster);
    program.ranks = cluster.ranks();
    program.devices = cluster.type().device;
    of_folder = base::concat(cluster.type().name, '-', cluster.nodes());
    ::setenv(kPlanClusterVariable, program.cluster.c_str(), 1);
  }
  const std::string& name = program.command.front();
  const std::string ranks = std::to_string(program.ranks);
  const std::string folder =
      program.folder.empty()
          ? "plans/" + std::filesystem::path(name).filename().string() + "-" + of_folder
          : program.folder;
  ::setenv(kPlanRanksVariable, ranks.c_str(), 1);
  ::setenv(kPlanFolderVariable, folder.c_str(), 1);
  ::setenv(kPlanSchedulesVariable, program.schedules.c_str(), 1);
  ::setenv(kPlanMicrobatchesVariable, std::to_string(program.microbatches).c_str(), 1);
  if (!program.devices.empty()) ::setenv("SMP_DEVICES", program.devices.c_str(), 1);
  if (program.stages_per_node > 0) {
    ::setenv("SMP_STAGES_PER_NODE", std::to_string(program.stages_per_node).c_str(), 1);
  }
  const PlanFolder made(folder);
  const auto before = plan_times(folder);
  const int status = run_to_its_end(program.command);
  SMP_REQUIRE(status != 0 || plan_times(folder) != before, name,
              " ended before it made a plan: nothing was written to ", folder,
              "; a plan is made in the first step of a program that calls smp::init and wraps its "
              "model in smp::DistributedModel");
  return status;
}

}  // namespace smp::cli
