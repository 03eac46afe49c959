// base/log.cpp: spdlog, compiled here only.
#include "base/log.h"

#include <spdlog/logger.h>
#include <spdlog/sinks/ansicolor_sink.h>
#include <spdlog/sinks/ostream_sink.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <set>

#include "base/status_line.h"

namespace smp::base {
namespace {

spdlog::level::level_enum to_spdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
  }
  return spdlog::level::info;
}

// Level of rank `rank`, from SMP_LOG or else by rank.
spdlog::level::level_enum level_of(int rank) {
  const char* wanted = std::getenv("SMP_LOG");
  if (wanted != nullptr && *wanted != '\0') {
    const auto level = spdlog::level::from_str(wanted);
    if (level != spdlog::level::off || std::string(wanted) == "off") return level;
  }
  return rank <= 0 ? spdlog::level::info : spdlog::level::warn;
}

// The process's log. A log line may come from a destructor at exit, so it is never destroyed.
struct Log {
  Log() : console(make_console()), logger("smp", console) { name("?", -1); }

  static std::shared_ptr<spdlog::sinks::sink> make_console() {
    const char* no_color = std::getenv("NO_COLOR");
    const bool plain = no_color != nullptr && *no_color != '\0';
    return std::make_shared<spdlog::sinks::ansicolor_stderr_sink_mt>(
        plain ? spdlog::color_mode::never : spdlog::color_mode::automatic);
  }

  void name(const std::string& rank_text, int rank) {
    pattern = "%^[smp %L rank " + rank_text + "]%$ %v";
    logger.set_pattern(pattern);
    logger.set_level(level_of(rank));
  }

  void redirect(std::shared_ptr<spdlog::sinks::sink> sink) {
    logger.sinks() = {std::move(sink)};
    logger.set_pattern(pattern);
  }

  std::shared_ptr<spdlog::sinks::sink> console;
  spdlog::logger logger;
  std::string pattern;
  std::mutex mutex;
  std::set<std::string> warned;  // guarded by mutex
};

std::atomic<int> rank_of_lines = -1;

Log& process_log() {
  static Log* const log = new Log;
  return *log;
}

}  // namespace

void set_log_rank(int rank) {
  rank_of_lines = rank;
  process_log().name(std::to_string(rank), rank);
}

int log_rank() noexcept { return rank_of_lines; }

bool log_enabled(LogLevel level) noexcept {
  return process_log().logger.should_log(to_spdlog(level));
}

void log_text(LogLevel level, const std::string& text) noexcept {
  Log& log = process_log();
  if (log.logger.should_log(to_spdlog(level))) erase_status();
  log.logger.log(to_spdlog(level), spdlog::string_view_t(text));
  log.logger.flush();
}

void warn_once_text(const std::string& id, const std::string& text) noexcept {
  Log& log = process_log();
  {
    const std::lock_guard lock(log.mutex);
    if (!log.warned.insert(id).second) return;
  }
  log_text(LogLevel::kWarning, text);
}

LogCapture::LogCapture() {
  process_log().redirect(std::make_shared<spdlog::sinks::ostream_sink_mt>(stream_));
}

LogCapture::~LogCapture() { process_log().redirect(process_log().console); }

}  // namespace smp::base
