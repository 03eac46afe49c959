// Files of the source tree, for tests that hold documents against code.
#pragma once

#include <filesystem>
#include <string>

namespace smp::support {

/// Path of `name` below the root of the repository, which tests run below.
inline std::string source_file(const std::string& name) {
  for (auto folder = std::filesystem::current_path();; folder = folder.parent_path()) {
    if (std::filesystem::exists(folder / "tests/support/source_file.h")) return folder / name;
    if (folder == folder.parent_path()) return name;
  }
}

}  // namespace smp::support
