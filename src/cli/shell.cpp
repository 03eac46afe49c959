// cli/shell.cpp: see the header.
#include "cli/shell.h"

#include <sys/wait.h>

#include <array>
#include <cstdio>

namespace smp::cli {

Output run(const std::string& command) {
  Output output;
  FILE* const pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) return output;
  std::array<char, 4096> part{};
  while (std::fgets(part.data(), part.size(), pipe) != nullptr) output.text += part.data();
  const int status = ::pclose(pipe);
  output.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return output;
}

}  // namespace smp::cli
