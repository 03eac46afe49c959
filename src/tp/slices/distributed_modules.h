// tp/slices/distributed_modules.h: the modules of a model that are spread over ranks.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "smp/tp/distributed_module.h"

namespace smp::tp {

/// Returns the distributed modules by path, each once, in the order of named_modules(). A module
/// that stands in for another (smp/tp/replacement.h) comes under the path of that one, and the
/// modules below it below that path. Threads: the rank's.
std::vector<std::pair<std::string, const DistributedModule*>> distributed_modules_of(
    const torch::nn::Module& model);

}  // namespace smp::tp
