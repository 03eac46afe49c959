// base/status_line.cpp: "\r" goes back to the beginning of the line, "\033[K" erases what follows.
#include "base/status_line.h"

#include <fcntl.h>
#include <sys/ioctl.h>
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

/// Returns the columns of the terminal that shows the line, which under a launcher only COLUMNS
/// tells; 0: not known.
int columns() noexcept {
  const char* const told = std::getenv("COLUMNS");
  if (told != nullptr && std::atoi(told) > 0) return std::atoi(told);
  winsize size{};
  return ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

}  // namespace

bool has_audience() noexcept {
  if (const char* const told = std::getenv("SMP_PROGRESS"); told != nullptr && *told != '\0') {
    return std::string_view(told) == "1";
  }
  const char* const terminal = std::getenv("TERM");
  if (terminal != nullptr && std::string_view(terminal) == "dumb") return false;  // erases nothing
  if (::isatty(STDERR_FILENO) == 1) return true;
  return std::getenv(kLaunched) != nullptr && launcher_has_terminal();
}

std::string_view fitted_status(std::string_view text, int columns) noexcept {
  if (columns <= 0) return text;
  const auto starts_character = [](char byte) {
    return (static_cast<unsigned char>(byte) & 0xC0) != 0x80;
  };
  int room = columns - 1;  // a full line makes some terminals begin another
  std::size_t end = 0;
  while (end < text.size() && (room > 0 || !starts_character(text[end]))) {
    room -= starts_character(text[end]) ? 1 : 0;
    ++end;
  }
  return text.substr(0, end);
}

void show_status(std::string_view text) noexcept try {
  line_is_shown = true;
  write_once(concat("\r\033[K", fitted_status(text, columns())));
} catch (const std::exception&) {
}

void erase_status() noexcept {
  if (line_is_shown.exchange(false)) write_once("\r\033[K");
}

}  // namespace smp::base
