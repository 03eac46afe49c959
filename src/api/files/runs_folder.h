// api/files/runs_folder.h: where runs are to leave their folders, as `smp sweep` says.
#pragma once

namespace smp {

/// Environment variable by which `smp sweep` tells the program that it starts in which folder a
/// RunLog makes its own, instead of in RunLogOptions::parent_folder.
inline constexpr const char* kRunsFolderVariable = "SMP_RUNS_FOLDER";

}  // namespace smp
