// base/machine/neuron_check.h: whether a machine with AWS Neuron devices has what a job on them
// needs, as far as its files tell.
#pragma once

#include <vector>

#include "base/machine/machine_check.h"
#include "base/machine/neuron_files.h"

namespace smp::base {

/// Judges the Neuron devices of a machine and their software; says nothing of a machine that has
/// none. What is in the way is a note: ranks that compute on cores need none of it. A pure
/// function.
[[nodiscard]] std::vector<MachineFinding> check_neuron(const NeuronFacts& facts);

}  // namespace smp::base
