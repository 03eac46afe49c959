// Files of the source tree, for tests that hold documents against code.
#pragma once

#include <filesystem>
#include <string>

namespace smp::support {

/// Path of `name` below the root. The compiler was given the path of this header as absolute, or
/// relative to a folder above the working directory.
inline std::string source_file(const std::string& name) {
  const std::string here = __FILE__;
  const std::string root = here.substr(0, here.rfind("tests/support/"));
  for (auto folder = std::filesystem::current_path();; folder = folder.parent_path()) {
    if (std::filesystem::exists(folder / here)) return (folder / root / name).string();
    if (folder == folder.parent_path()) return root + name;
  }
}

}  // namespace smp::support
