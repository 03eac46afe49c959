// perf/harness/program.h: the programs of `./smp perf`, all in one binary, since most of what each
// would cost a compiler is LibTorch's headers. Each is a file with a namespace of its own, because
// files are joined.
#pragma once

#include <functional>
#include <string>

namespace smp::perf {

/// What `perf NAME` runs. Constant objects of the file that measures make it known before main().
class Program {
 public:
  using Run = std::function<void(int argc, char** argv)>;

  /// @param run  gets the arguments behind the name; argv[0] is the name
  Program(const std::string& name, Run run);
};

/// Runs the program that argv[1] names.
/// @return the exit status: 1 for an exception, which is printed; 2 for a name of none, after all
/// names
int run_named_program(int argc, char** argv);

}  // namespace smp::perf
