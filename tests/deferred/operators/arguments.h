// deferred/operators/arguments.h: arguments for any operator, made up from its schema.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <cstdint>

namespace smp::deferred {

/// Says how the tensors among made-up arguments come about.
struct ArgumentKinds {
  bool requires_grad = false;  ///< those of floating type
  bool first_real = false;     ///< the first tensor names its device, so it is never delayed
};

/// Returns arguments for `op`: the same choices for the same seed, with values drawn by operators
/// from LibTorch's default generator. Whether `op` takes them is for the caller to find out.
/// @throws std::exception  it has an argument of a kind that nobody makes up here
torch::jit::Stack made_up_arguments(const c10::OperatorHandle& op, std::uint64_t seed,
                                    const ArgumentKinds& kinds);

}  // namespace smp::deferred
