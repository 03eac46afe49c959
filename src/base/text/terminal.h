// base/text/terminal.h: how wide tables may be.
#pragma once

namespace smp::base {

/// Columns of the terminal that reads this process's output, or what COLUMNS says; between 60 and
/// 200, and 100 where nothing is known (a file, a pipe).
int terminal_width();

}  // namespace smp::base
