// fuzz/between.h: what a program does with its model between construction and placement.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "smp/state_dict.h"

namespace smp::fuzz {

/// How a program loads a dict into its model.
using Load = std::function<void(const StateDict& dict, bool strict)>;

/// Does to `module` what `seed` says: loads all or a part of it and uses the dict for other things,
/// or writes a tensor. Notes in `seen` what is refused.
void act_between(torch::nn::Module& module, const Load& load, std::uint64_t seed,
                 std::vector<std::string>& seen);

/// Returns what that is, as a person would say it.
std::string name_of_between(std::uint64_t seed);

}  // namespace smp::fuzz
