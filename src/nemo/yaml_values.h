// nemo/yaml_values.h: YAML as OmegaConf reads it, which configurations of NeMo are written for.
#pragma once

#include <string>

#include "config/json.h"

namespace smp::nemo {

/// Returns the value that OmegaConf 2.3 gives a plain scalar: nothing, a truth value, an integer, a
/// number or else a text. It has the rules of YAML 1.1 (`yes` is true, 010 is 8, 1:30 is 90), but
/// 1e-5 and 1.5e5 are numbers and 2020-01-01 is a text.
/// @throws UsageError  an integer that 64 bits do not hold; the message begins with `name`
base::Json yaml_scalar(const std::string& text, const std::string& name);

/// Returns the one document in `text`. Keys are texts; aliases and merge keys (`<<`) are replaced
/// by what they stand for; references (`${a.b}`) are left as they are.
/// @param name  leads the messages: a path
/// @throws UsageError  it is no YAML, with line and column; holds several documents, a key twice,
///                     a tag of its own, or more values or levels than a configuration has.
base::Json read_yaml(const std::string& text, const std::string& name);

}  // namespace smp::nemo
