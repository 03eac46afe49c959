// perf/harness/program.cpp: names to functions.
#include "program.h"

#include <iostream>
#include <map>
#include <utility>

#include "harness.h"

namespace smp::perf {
namespace {

std::map<std::string, Program::Run>& programs() {
  static std::map<std::string, Program::Run> all;
  return all;
}

}  // namespace

Program::Program(const std::string& name, Run run) { programs().emplace(name, std::move(run)); }

int run_named_program(int argc, char** argv) {
  const auto found = argc > 1 ? programs().find(argv[1]) : programs().end();
  if (found == programs().end()) {
    std::cerr << "usage: " << argv[0] << " NAME [options], with NAME one of:";
    for (const auto& [name, run] : programs()) std::cerr << ' ' << name;
    std::cerr << '\n';
    return 2;
  }
  return run_program([&] { found->second(argc - 1, argv + 1); });
}

}  // namespace smp::perf
