// module/whole_tensors.h: modules of which a rank has parts, so that it can neither copy nor write
// them.
#pragma once

namespace torch::nn {
class Module;
}

namespace smp::module {

/// Returns true if `module` itself, without those below it, has parts of its tensors only.
using HasParts = bool (*)(const torch::nn::Module& module);

/// Sets who answers for layers that are spread over ranks: the layer above that cuts them, before
/// main() begins.
void set_has_parts(HasParts has_parts) noexcept;

}  // namespace smp::module
