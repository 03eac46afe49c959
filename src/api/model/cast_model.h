// api/model/cast_model.h: the parameters of a model in the type that `precision` names.
#pragma once

#include <torch/nn/module.h>

namespace smp {

struct Config;

/// Rounds the floating parameters of `module` to the type of Config::precision; they stay the same
/// tensors. Delayed ones are rounded when they get their values, so that numbers are drawn in
/// float32 whatever the precision. Left as they are:
///
/// - buffers: tables of angles and masks lose what models need of them, running statistics sum up;
/// - the parameters of modules that keep running statistics (batch and instance norms), of which
///   LibTorch wants both in one type.
///
/// Without `precision`, and under "amp", nothing changes. Threads: the rank's, before placement.
void cast_model(torch::nn::Module& module, const Config& config);

}  // namespace smp
