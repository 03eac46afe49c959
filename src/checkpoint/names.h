// checkpoint/names.h: names of tensors that wrappers changed, and how to change them back.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/module_tensors.h"
#include "checkpoint/tensor_info.h"

namespace smp::checkpoints {

/// Returns `name` without `prefix`, or as it is if it does not begin so.
std::string without_prefix(const std::string& name, const std::string& prefix);
/// Returns `name` without each `part` between its dots: "a.b" of "a._orig_mod.b".
std::string without_part(const std::string& name, const std::string& part);

/// Returns how to change the names of `offered`, where that makes them the names of `tensors`, none
/// left over on either side: a prefix less, or more, or a part less that other tools put inside of
/// names ("_orig_mod"). A line with the call that does it; empty if there is no such change.
std::string name_hint(const std::vector<NamedTensor>& tensors,
                      const std::vector<TensorInfo>& offered);

}  // namespace smp::checkpoints
