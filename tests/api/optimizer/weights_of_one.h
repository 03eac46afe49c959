// A layer of bfloat16 whose weights are 1, where neighbours are 2^-8 apart: small steps are lost.
#pragma once

#include <torch/types.h>

#include "smp/smp.h"

namespace smp {

inline nn::Linear weights_of_one(std::int64_t inputs, std::int64_t outputs) {
  nn::Linear net(inputs, outputs);
  {
    const torch::NoGradGuard no_grad;
    net->weight.fill_(1);
  }
  net->to(torch::kBFloat16);
  return net;
}

}  // namespace smp
