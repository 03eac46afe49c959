// cli/shell.h: asking another program.
#pragma once

#include <string>

namespace smp::cli {

/// The standard output of a shell command and its exit status; -1 if it could not be started.
struct Output {
  int status = -1;
  std::string text;
};

/// Runs a shell command and waits until it has ended.
Output run(const std::string& command);

}  // namespace smp::cli
