// samples/t5/console.h: what the trainer says, on the first rank only.
#pragma once

#include <cstdint>
#include <string>

namespace t5 {

/// Lines with a word in front, and on a terminal a progress bar below them.
class Console {
 public:
  explicit Console(int64_t total_steps);
  ~Console();
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  /// Prints "topic   text"; the lines of a longer text are set in.
  void say(const std::string& topic, const std::string& text);

  /// Shows the bar for `done` steps, the rest of which will take `seconds_left`.
  void progress(int64_t done, double seconds_left);

 private:
  void erase_bar();

  const int64_t total_steps_;
  const bool speaks_;
  const bool has_bar_;
  bool bar_is_shown_ = false;
};

/// printf into a string.
[[gnu::format(printf, 1, 2)]] std::string format(const char* pattern, ...);

}  // namespace t5
