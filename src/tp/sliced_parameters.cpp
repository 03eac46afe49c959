// tp/sliced_parameters.cpp: see the header.
#include "tp/sliced_parameters.h"

#include <torch/nn/module.h>

#include "smp/call.h"

namespace smp::tp {

SlicedParameters::SlicedParameters(const torch::nn::Module& model) {
  add(model);
  for (const auto& module : model.modules(/*include_self=*/false)) add(*module);
}

void SlicedParameters::add(const torch::nn::Module& module) {
  if (const auto* const distributed = dynamic_cast<const DistributedModule*>(&module)) {
    const auto parameters = module.named_parameters(/*recurse=*/false);
    for (const auto& [name, slice] : distributed->sliced()) {
      slices_.emplace(parameters[name].unsafeGetTensorImpl(),
                      Sliced{slice, distributed->origin(name)});
    }
  }
  const auto* const routed = dynamic_cast<const RoutedBase*>(&module);
  if (routed == nullptr || !routed->smp_stand_in) return;
  auto& stand_in = routed->smp_stand_in->module();
  add(stand_in);
  for (const auto& part : stand_in.modules(/*include_self=*/false)) add(*part);
}

}  // namespace smp::tp
