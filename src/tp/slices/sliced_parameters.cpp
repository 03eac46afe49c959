// tp/slices/sliced_parameters.cpp: see the header.
#include "tp/slices/sliced_parameters.h"

#include <torch/nn/module.h>

#include "tp/slices/distributed_modules.h"

namespace smp::tp {

SlicedParameters::SlicedParameters(const torch::nn::Module& model) {
  for (const auto& [path, module] : distributed_modules_of(model)) add(*module);
}

void SlicedParameters::add(const DistributedModule& module) {
  const auto parameters = module.named_parameters(/*recurse=*/false);
  for (const auto& [name, slice] : module.sliced()) {
    slices_.emplace(parameters[name].unsafeGetTensorImpl(), Sliced{slice, &module, name});
  }
}

}  // namespace smp::tp
