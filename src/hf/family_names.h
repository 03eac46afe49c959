// hf/family_names.h: what is special about the published names of a family.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "smp/hf.h"

namespace smp::hf {

/// Tensors that files may have once or several times.
struct Tie {
  std::string_view name;  ///< what is written
  std::string_view copy;  ///< another name of it
  bool may_differ;        ///< the copy may be a tensor of its own: a head
};

/// Returns the ties of a family, those of the head's matrix first.
std::span<const Tie> ties_of(Family family);

/// Returns `name` as transformers calls it in a model with a head: without what wrappers put before
/// ("module.") and into it ("_orig_mod"), with the family's prefix, and without old names of norms.
std::string canonical(Family family, const std::string& name);

/// True if the tensor of this canonical name is no parameter: a mask, frequencies, positions.
bool is_buffer(Family family, const std::string& canonical_name);

/// True if a model may lack it: a buffer, or a part of a further head that published files have.
bool may_be_left_out(Family family, const std::string& canonical_name);

}  // namespace smp::hf
