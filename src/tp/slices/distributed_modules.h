// tp/slices/distributed_modules.h: the modules of a model that are spread over ranks.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "smp/tp/distributed_module.h"

namespace smp::tp {

/// By path, each once, in the order of named_modules(). What stands in for a module
/// (smp/tp/replacement.h) comes under the path of that one, and what is below it below.
/// Threads: the rank's.
std::vector<std::pair<std::string, const DistributedModule*>> distributed_modules_of(
    const torch::nn::Module& model);

}  // namespace smp::tp
