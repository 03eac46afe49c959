// api/model/model_pins.cpp: see the header.
#include "api/model/model_pins.h"

#include <cstddef>

#include "base/check.h"
#include "smp/detail/routed.h"

namespace smp {
namespace {

using partitioning::Pin;

/// Adds pins for modules that another wrapper has placed, even one that is gone: they stay where
/// their values are.
void add_pins_of_placed_modules(const ModelDescription& description, const std::vector<Pin>& pins,
                                std::vector<Pin>& all) {
  for (std::size_t i = 0; i < description.routed.size(); ++i) {
    const auto* routed = description.routed[i];
    if (routed == nullptr || !routed->smp_place.placed()) continue;
    const auto& path = description.tree.nodes[i].path;
    const int owner = routed->smp_place.owner.value();
    for (const auto& pin : pins) {
      SMP_REQUIRE(pin.path != path || pin.pp_rank == owner, "set_partition(\"", path, "\", ",
                  pin.pp_rank, "): another smp::DistributedModel has placed this module on stage ",
                  owner, " already, where its parameters are; leave it there");
    }
    SMP_REQUIRE(!path.empty() || owner == 0, "smp::DistributedModel of module '",
                routed->smp_place.path, "': another smp::DistributedModel has placed it on stage ",
                owner,
                ", but a model of its own begins on stage 0; call it in the body through the "
                "other model's module, or place it there with set_partition(\"",
                routed->smp_place.path, "\", 0)");
    all.push_back({path, owner, "another smp::DistributedModel"});
  }
}

}  // namespace

std::vector<Pin> all_pins(const ModelDescription& description, const std::vector<Pin>& pins) {
  std::vector<Pin> all;
  for (std::size_t i = 0; i < description.routed.size(); ++i) {
    const auto* routed = description.routed[i];
    if (routed != nullptr && routed->smp_pin) {
      all.push_back(
          {description.tree.nodes[i].path, *routed->smp_pin, "a scope of smp::partition"});
    }
  }
  all.insert(all.end(), pins.begin(), pins.end());
  add_pins_of_placed_modules(description, pins, all);
  return all;
}

}  // namespace smp
