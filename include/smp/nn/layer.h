// smp/nn/layer.h: make a routed smp::nn layer of a torch::nn one. For use in namespace smp.
#pragma once

#include "smp/module.h"

// clang-format off
/// Declares that torch::nn::ImplType never draws random numbers, so that its calls set up no random
/// stream.
#define SMP_NN_NEVER_DRAWS(ImplType) \
  template <>                        \
  inline constexpr bool draws_random_v<torch::nn::ImplType> = false;

/// Defines smp::nn::Name, the holder of a routed torch::nn::NameImpl that may draw random numbers;
/// methods named after it are routed beside forward.
#define SMP_NN_RANDOM_LAYER(Name, ...)                                                 \
  namespace nn {                                                                       \
  using torch::nn::Name##Impl;                                                         \
  /** Like torch::nn::Name, routed. */                                                 \
  SMP_MODULE_IMPL(Name, torch::nn::Name##Impl __VA_OPT__(, ) __VA_ARGS__);             \
  }

/// Defines the same for a layer that never draws random numbers.
#define SMP_NN_LAYER(Name, ...)  \
  SMP_NN_NEVER_DRAWS(Name##Impl) \
  SMP_NN_RANDOM_LAYER(Name __VA_OPT__(, ) __VA_ARGS__)
// clang-format on
