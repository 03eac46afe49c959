// base/status_line.h: the last line of a person's terminal, which is written over as work goes on.
// Any thread.
#pragma once

#include <string_view>

namespace smp::base {

/// True if a person sees this process's stderr as it is written: it is a terminal, or under a
/// launcher of this machine, which reads its ranks' stderr from pipes, that of the launcher is.
/// SMP_PROGRESS = 1 or 0 says so for sure.
bool has_audience() noexcept;

/// Shows `text` on stderr as a line without an end, in the place of the one shown before.
void show_status(std::string_view text) noexcept;

/// Removes the line, if one is shown, so that another may be written there; for signal handlers
/// too.
void erase_status() noexcept;

}  // namespace smp::base
