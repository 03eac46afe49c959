// smp/nn/container.h: containers whose modules are called one by one; torch's own serve, because
// every routed module in them has its own path and owner.
#pragma once

#include <torch/nn/modules/container/functional.h>
#include <torch/nn/modules/container/moduledict.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/parameterdict.h>
#include <torch/nn/modules/container/parameterlist.h>

#include "smp/nn/layer.h"

namespace smp {

/// The function runs on the owner of the Functional; it may capture anything.
SMP_NN_RANDOM_LAYER(Functional)

namespace nn {

using torch::nn::Cloneable;
using torch::nn::Module;
using torch::nn::ModuleDict;
using torch::nn::ModuleDictImpl;
using torch::nn::ModuleHolder;
using torch::nn::ModuleList;
using torch::nn::ModuleListImpl;
using torch::nn::ParameterDict;
using torch::nn::ParameterDictImpl;
using torch::nn::ParameterList;
using torch::nn::ParameterListImpl;

}  // namespace nn
}  // namespace smp
