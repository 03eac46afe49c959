// samples/t5/console.cpp: lines and the progress bar.
#include "console.h"

#include <unistd.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>

#include "flags/flags.h"

namespace t5 {
namespace {

constexpr int kTopicWidth = 8;

/// Launchers put a terminal of their own between the ranks and the user's, so that isatty() proves
/// nothing under them; whoever starts them knows, and says so in SMP_PROGRESS.
bool on_a_terminal() {
  if (const char* told = std::getenv("SMP_PROGRESS")) return std::string(told) == "1";
  return std::getenv("OMPI_COMM_WORLD_RANK") == nullptr && isatty(STDOUT_FILENO) == 1;
}

/// A line that is longer than the terminal is wide could not be erased.
int64_t bar_width() {
  constexpr int64_t kUsual = 40;
  constexpr int64_t kBeside = 24;  // for what stands at the bar's right
  const char* const told = std::getenv("COLUMNS");
  const int64_t columns = told == nullptr ? 0 : std::atoi(told);
  return columns > 0 ? std::clamp<int64_t>(columns - kBeside, 0, kUsual) : kUsual;
}

std::string repeated(const char* piece, int64_t times) {
  std::string text;
  for (int64_t i = 0; i < times; ++i) text += piece;
  return text;
}

}  // namespace

Console::Console(int64_t total_steps)
    : total_steps_(total_steps),
      speaks_(flags::is_first_rank()),
      has_bar_(speaks_ && on_a_terminal()) {}

Console::~Console() { erase_bar(); }

void Console::say(const std::string& topic, const std::string& text) {
  if (!speaks_) return;
  erase_bar();
  std::string line = format("%-*s", kTopicWidth, topic.c_str());
  for (size_t i = 0; i < text.size(); ++i) {
    line += text[i];
    const bool more_follows = text[i] == '\n' && i + 1 < text.size();
    if (more_follows) line += std::string(kTopicWidth, ' ');
  }
  if (line.back() != '\n') line += '\n';
  std::fputs(line.c_str(), stdout);
  std::fflush(stdout);
}

void Console::progress(int64_t done, double seconds_left) {
  if (!has_bar_) return;
  const int64_t width = bar_width();
  const int64_t filled = width * done / total_steps_;
  const std::string bar = repeated("█", filled) + repeated("░", width - filled);
  std::printf("\r%s %3d %%  %.0f s left ", bar.c_str(), static_cast<int>(100 * done / total_steps_),
              seconds_left);
  std::fflush(stdout);
  bar_is_shown_ = true;
}

void Console::erase_bar() {
  if (bar_is_shown_) std::fputs("\r\033[K", stdout);
  bar_is_shown_ = false;
}

std::string format(const char* pattern, ...) {
  char text[512];
  std::va_list values;
  va_start(values, pattern);
  std::vsnprintf(text, sizeof text, pattern, values);
  va_end(values);
  return text;
}

}  // namespace t5
