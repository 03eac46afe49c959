// config/needless_keys.cpp: see the header.
#include "config/needless_keys.h"

#include <algorithm>
#include <cstdint>
#include <utility>

namespace smp::base {
namespace {

NeedlessKey boolean(std::string name, bool default_value, std::string reason) {
  return {std::move(name), KeyType::kBoolean, "true or false", default_value, std::move(reason)};
}

std::vector<NeedlessKey> make_needless_keys() {
  return {
      boolean("deterministic_server", false,
              "requests may be served in any order, because no result depends on it: what must be "
              "in order is ordered by what is computed, on every replica alike (docs/design.md, "
              "Order)"),
      {"ddp_port", KeyType::kInteger, "an integer from 0 to 65535", nullptr,
       "MPI connects the ranks, and no port is agreed on"},
      {"ddp_dist_backend", KeyType::kString, "\"auto\" or \"nccl\"", "auto",
       "replicas add up gradients over the paths that their ranks have; device_collectives chooses "
       "for ranks that share layers"},
      boolean("horovod", false, "this library trains replicas itself, as ddp says"),
      boolean("contiguous", true, "partition_strategy chooses how a model is split"),
      boolean("load_partition", false, "the plan that plan_file names is read where it is set"),
      boolean("_match_weights", false,
              "distributed modules start with the weights of those that they replace"),
  };
}

}  // namespace

bool NeedlessKey::takes(const Json& value) const {
  constexpr int kMostPorts = 65535;
  switch (type) {
    case KeyType::kBoolean:
      return value.is_boolean();
    case KeyType::kInteger:
      return value.is_number_integer() && value.get<std::int64_t>() >= 0 &&
             value.get<std::int64_t>() <= kMostPorts;
    case KeyType::kString:
      return value.is_string() &&
             (value.get<std::string>() == "auto" || value.get<std::string>() == "nccl");
    default:
      return false;
  }
}

const std::vector<NeedlessKey>& needless_keys() {
  static const std::vector<NeedlessKey> keys = make_needless_keys();
  return keys;
}

const NeedlessKey* find_needless_key(const std::string& name) {
  const auto& keys = needless_keys();
  const auto found = std::find_if(keys.begin(), keys.end(),
                                  [&](const NeedlessKey& key) { return key.name == name; });
  return found == keys.end() ? nullptr : &*found;
}

}  // namespace smp::base
