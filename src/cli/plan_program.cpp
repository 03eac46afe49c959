// cli/plan_program.cpp: passes the request on in the environment and replaces this process.
#include "cli/plan_program.h"

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string_view>

#include "api/plan_request.h"
#include "base/check.h"

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
  SMP_REQUIRE(make || program.ranks == 0, "plan --ranks needs a program: -- PROGRAM ARGUMENTS");
  SMP_REQUIRE(make || !file.empty(),
              "plan needs the plan.json of a run, or --ranks N -- PROGRAM ARGUMENTS");
  SMP_REQUIRE(!make || file.empty(), "plan either prints ", file, " or plans ",
              make ? program.command.front() : "", ", not both");
  SMP_REQUIRE(!make || program.ranks > 0, "plan needs --ranks N to plan for");
  SMP_REQUIRE(program.microbatches == 0 || !program.schedules.empty(),
              "plan --microbatches is for --schedule");
  return make;
}

void plan_program(const ProgramToPlan& program) {
  const std::string& name = program.command.front();
  const std::string ranks = std::to_string(program.ranks);
  const std::string folder =
      program.folder.empty()
          ? "plans/" + std::filesystem::path(name).filename().string() + "-" + ranks
          : program.folder;
  ::setenv(kPlanRanksVariable, ranks.c_str(), 1);
  ::setenv(kPlanFolderVariable, folder.c_str(), 1);
  ::setenv(kPlanSchedulesVariable, program.schedules.c_str(), 1);
  ::setenv(kPlanMicrobatchesVariable, std::to_string(program.microbatches).c_str(), 1);
  std::vector<char*> arguments;
  for (const std::string& argument : program.command) {
    arguments.push_back(const_cast<char*>(argument.c_str()));
  }
  arguments.push_back(nullptr);
  ::execvp(name.c_str(), arguments.data());
  throw UsageError(base::concat("cannot start ", name, ": ", std::strerror(errno)));
}

}  // namespace smp::cli
