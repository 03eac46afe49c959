// module/path_below.h: paths of modules and parameters, as LibTorch has them: "encoder.0.weight".
#pragma once

#include <string>

namespace smp {

/// Returns the path of the child or tensor `name` of the module at `path`; the model's path is
/// empty.
inline std::string path_below(const std::string& path, const std::string& name) {
  return path.empty() ? name : path + '.' + name;
}

}  // namespace smp
