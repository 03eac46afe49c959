// partition/simulated/machine_json.h: a machine as a file keeps it.
#pragma once

#include <string>

#include "config/json.h"
#include "simulate/machine.h"

namespace smp::partitioning {

[[nodiscard]] base::Json machine_to_json(const simulate::Machine& machine);
/// @param name  leads the messages: the path of the file
/// @throws UsageError  missing or wrong members, or such that no machine has
[[nodiscard]] simulate::Machine machine_from_json(const base::Json& json, const std::string& name);

}  // namespace smp::partitioning
