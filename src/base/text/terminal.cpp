// base/text/terminal.cpp: asks the terminal, unless the user says it.
#include "base/text/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

namespace smp::base {
namespace {

constexpr int kUsual = 100;
constexpr int kLeast = 60;
constexpr int kMost = 200;

/// Returns the columns of the terminal that stdout goes to; 0 if it goes elsewhere.
int columns_of_output() {
  winsize size{};
  return ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

}  // namespace

int terminal_width() {
  const char* const wanted = std::getenv("COLUMNS");
  const int said = wanted == nullptr ? 0 : std::atoi(wanted);
  const int columns = said > 0 ? said : columns_of_output();
  return columns > 0 ? std::clamp(columns, kLeast, kMost) : kUsual;
}

}  // namespace smp::base
