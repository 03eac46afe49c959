// base/log.h: lines on stderr that start with level and rank: "[smp W rank 2] text".
// Rank 0 prints everything from info on, other ranks only warnings and errors. SMP_LOG = debug,
// info, warning, error or off sets the level of all ranks. Colour only on a terminal and without
// NO_COLOR. Any thread.
#pragma once

#include <sstream>
#include <string>

#include "base/check.h"

namespace smp::base {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

/// Names this process in log lines from now on, and sets its level. Before, it is "rank ?".
void set_log_rank(int rank);

/// Returns the rank that set_log_rank() gave last; -1 before.
int log_rank() noexcept;

/// True if a line of this level would be shown; ask before building a costly one.
bool log_enabled(LogLevel level) noexcept;

void log_text(LogLevel level, const std::string& text) noexcept;
/// Logs `text` as a warning, but only the first time that this process meets `id`.
void warn_once_text(const std::string& id, const std::string& text) noexcept;

/// Logs the streamed parts as one line.
template <class... Parts>
void log(LogLevel level, const Parts&... parts) {
  if (log_enabled(level)) log_text(level, concat(parts...));
}

template <class... Parts>
void warn_once(const std::string& id, const Parts&... parts) {
  warn_once_text(id, concat(parts...));
}

/// Captures log lines instead of printing them to stderr while it lives; for tests. One at a time.
class LogCapture {
 public:
  LogCapture();
  ~LogCapture();
  LogCapture(const LogCapture&) = delete;
  LogCapture& operator=(const LogCapture&) = delete;
  /// Returns everything that was logged so far.
  std::string text() const { return stream_.str(); }

 private:
  std::ostringstream stream_;
};

}  // namespace smp::base
