// hf/name_map.h: one name of a model as a part of a published tensor.
#pragma once

#include <cstddef>
#include <string>

#include "smp/hf.h"

namespace smp::hf {

/// A part of a published tensor.
struct Part {
  std::string name;       ///< of the tensor, canonical
  std::size_t index = 0;  ///< of the part, along axis 0 of the turned tensor
  std::size_t count = 1;  ///< of equal parts
  bool turned = false;

  bool operator==(const Part&) const = default;
};

/// Returns the published tensor that holds the values of the model's tensor `own_name`.
Part published_part(const NameMap& names, const std::string& own_name);

/// Returns the names of a model that share the published tensor of this canonical name, in order,
/// and whether it is turned.
std::pair<std::vector<std::string>, bool> own_names(const NameMap& names,
                                                    const std::string& canonical_name);

}  // namespace smp::hf
