// cli/nemo_config.h: a configuration of NeMo, for smp config --from nemo.
#pragma once

#include <string>

namespace smp::cli {

/// Translates the YAML file `file`, and returns what to print.
/// @param folder  for smp.json and config.json, which are named then; "": nothing is written
/// @throws UsageError        no file is given, it cannot be read, or nemo::from_nemo() refuses it.
/// @throws UnsupportedError  the tool was built without yaml-cpp.
/// @throws ResourceError     a file cannot be written.
std::string translate_nemo(const std::string& file, const std::string& folder);

}  // namespace smp::cli
