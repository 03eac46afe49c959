// server/common_errors.h: errors that all ranks of a job throw, and that only one shall print.
#pragma once

#include <string>

namespace smp::server {

/// An error with this text is thrown on another rank as well, which prints it. Any thread.
void leave_to_another_rank(const std::string& text);
bool is_left_to_another_rank(const std::string& text);

/// Prints "smp: `text`" and a newline, or leaves it to another rank: then waits long enough for
/// that, because a launcher ends the other ranks when the first one exits. Any thread.
void say_once(const std::string& text) noexcept;

}  // namespace smp::server
