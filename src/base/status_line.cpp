// base/status_line.cpp: "\r" goes back to the beginning of the line, "\033[K" erases what follows.
#include "base/status_line.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <string>

#include "base/check.h"

namespace smp::base {
namespace {

/// What Open MPI tells the ranks that it starts.
constexpr const char* kLaunched = "OMPI_COMM_WORLD_RANK";

std::atomic<bool> line_is_shown = false;

void write_once(std::string_view text) noexcept {
  // One write, so that lines of other processes do not come between; a lost one is no loss.
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, text.data(), text.size());
}

bool launcher_has_terminal() noexcept try {
  const auto errors = concat("/proc/", ::getppid(), "/fd/", STDERR_FILENO);
  const int descriptor = ::open(errors.c_str(), O_WRONLY | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
  if (descriptor < 0) return false;
  const bool terminal = ::isatty(descriptor) == 1;
  ::close(descriptor);
  return terminal;
} catch (const std::exception&) {
  return false;
}

}  // namespace

bool has_audience() noexcept {
  if (const char* const told = std::getenv("SMP_PROGRESS"); told != nullptr && *told != '\0') {
    return std::string_view(told) == "1";
  }
  if (::isatty(STDERR_FILENO) == 1) return true;
  return std::getenv(kLaunched) != nullptr && launcher_has_terminal();
}

void show_status(std::string_view text) noexcept try {
  line_is_shown = true;
  write_once(concat("\r\033[K", text));
} catch (const std::exception&) {
}

void erase_status() noexcept {
  if (line_is_shown.exchange(false)) write_once("\r\033[K");
}

}  // namespace smp::base
