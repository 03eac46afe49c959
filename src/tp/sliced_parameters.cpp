// tp/sliced_parameters.cpp: see the header.
#include "tp/sliced_parameters.h"

#include <torch/nn/module.h>

#include "smp/tp/distributed_module.h"

namespace smp::tp {

SlicedParameters::SlicedParameters(const torch::nn::Module& model) {
  const auto add = [this](const torch::nn::Module& module) {
    const auto* const distributed = dynamic_cast<const DistributedModule*>(&module);
    if (distributed == nullptr) return;
    const auto parameters = module.named_parameters(/*recurse=*/false);
    for (const auto& [name, dim] : distributed->sliced()) {
      dims_.emplace(parameters[name].unsafeGetTensorImpl(), dim);
    }
  };
  add(model);
  for (const auto& module : model.modules(/*include_self=*/false)) add(*module);
}

}  // namespace smp::tp
