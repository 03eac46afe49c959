// module/replace_contents.h: a module that has the parameters and children of another.
#pragma once

namespace torch::nn {
class Module;
}

namespace smp::module {

/// Replaces the parameters, buffers and children of `module` by those of `by`, under their names,
/// where whoever walks over modules finds them; both modules stay alive. Parameters of `module`,
/// and of what was below it, that `by` does not have lose their memory. Handles that the program
/// keeps to what was there are left alone. Threads: the rank's.
void replace_contents(torch::nn::Module& module, const torch::nn::Module& by);

}  // namespace smp::module
