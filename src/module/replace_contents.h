// module/replace_contents.h: a module that has the parameters and children of another.
#pragma once

namespace torch::nn {
class Module;
}

namespace smp::module {

/// From now on `module` has the parameters, buffers and children of `by`, under their names, which
/// is where whoever walks over modules finds them; both outlive that. Parameters of `module`, and
/// of what was below it, that `by` does not have lose their memory. Handles that the program keeps
/// to what was there are left alone. Threads: the rank's.
void replace_contents(torch::nn::Module& module, const torch::nn::Module& by);

}  // namespace smp::module
