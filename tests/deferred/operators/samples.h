// deferred/operators/samples.h: arguments for operators that do not take what is made up.
#pragma once

#include "deferred/operators/arguments.h"

namespace smp::deferred {

/// Returns arguments written down for `op`, where there are any, else made-up ones.
torch::jit::Stack arguments_for(const c10::OperatorHandle& op, std::uint64_t seed,
                                const ArgumentKinds& kinds);

/// True if arguments are written down for `op`.
bool has_sample(const c10::OperatorHandle& op);

}  // namespace smp::deferred
