// base/text/terminal.h: how wide tables may be.
#pragma once

namespace smp::base {

/// Returns the columns of the terminal that shows this process's output, or the value of COLUMNS;
/// between 60 and 200, and 100 where neither is known (a file, a pipe).
int terminal_width();

}  // namespace smp::base
