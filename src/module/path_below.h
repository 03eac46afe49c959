// module/path_below.h: paths of modules and parameters, as LibTorch has them: "encoder.0.weight".
#pragma once

#include <string>

namespace smp {

/// Of what `path`, a module, calls `name`; the model itself has no path.
inline std::string path_below(const std::string& path, const std::string& name) {
  return path.empty() ? name : path + '.' + name;
}

}  // namespace smp
