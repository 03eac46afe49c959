// cli/shell.h: asking another program.
#pragma once

#include <string>

namespace smp::cli {

/// What a shell command prints, and its exit status; -1: it could not be started.
struct Output {
  int status = -1;
  std::string text;
};

/// Waits until the command has ended.
Output run(const std::string& command);

}  // namespace smp::cli
