// base/status_line.h: the last line of a person's terminal, which is written over as work goes on.
// Any thread.
#pragma once

#include <string_view>

namespace smp::base {

/// True if a person sees this process's stderr as it is written: it is a terminal, or under a
/// launcher of this machine, which reads its ranks' stderr from pipes, that of the launcher is.
/// A dumb terminal (TERM) has none. SMP_PROGRESS = 1 or 0 says so for sure.
bool has_audience() noexcept;

/// Returns the beginning of UTF-8 text that fits a line of `columns`: only the last line of a
/// longer one could be erased. @param columns  0: not known
std::string_view fitted_status(std::string_view text, int columns) noexcept;

/// Shows `text` on stderr as a line without an end, in the place of the one shown before. What does
/// not fit the terminal is left out.
void show_status(std::string_view text) noexcept;

/// Removes the line, if one is shown, so that another may be written there; for signal handlers
/// too.
void erase_status() noexcept;

}  // namespace smp::base
