// module/registry.cpp: the calls that other ranks may ask this process to run. Filled before main
// by the templates of smp/detail/routed.h, constant afterwards unless a library is loaded.
#include "module/registry.h"

#include <mutex>
#include <string_view>
#include <typeinfo>
#include <unordered_map>
#include <vector>

#include "base/check.h"

namespace smp {
namespace {

struct Collision {
  CallEntry first;
  CallEntry second;
};

struct Registry {
  std::mutex mutex;
  std::unordered_map<std::uint64_t, CallEntry> calls;
  std::vector<Collision> collisions;
};

/// Returns the registry, which is never freed: destructors of other static objects may still ask.
Registry& registry() {
  static auto* instance = new Registry;
  return *instance;
}

/// True if both are the same type: two copies of one template in two libraries are, two types of
/// anonymous namespaces with one name are not. (Not every compiler's type_info tells the latter
/// apart by itself.)
bool same_type(const std::type_info& one, const std::type_info& other) {
  const bool local = std::string_view(one.name()).find("_GLOBAL__N_") != std::string_view::npos;
  return local ? &one == &other : one == other;
}

bool same_call(const CallEntry& one, const CallEntry& other) {
  return (one.type == nullptr || other.type == nullptr || same_type(*one.type, *other.type)) &&
         std::string_view(one.signature) == other.signature;
}

std::uint64_t mixed(std::uint64_t value) {
  value ^= value >> 31;
  value *= 0x9e3779b97f4a7c15ull;
  return value ^ (value >> 29);
}

}  // namespace

const CallEntry& register_call(const CallEntry& entry) {
  auto& all = registry();
  const std::lock_guard lock(all.mutex);
  const auto [place, added] = all.calls.try_emplace(entry.key, entry);
  if (!added && !same_call(place->second, entry)) {
    all.collisions.push_back({place->second, entry});
  }
  return place->second;
}

const CallEntry* find_call(std::uint64_t key) noexcept {
  auto& all = registry();
  const std::lock_guard lock(all.mutex);
  const auto place = all.calls.find(key);
  return place == all.calls.end() ? nullptr : &place->second;
}

std::uint64_t call_registry_hash() noexcept {
  auto& all = registry();
  const std::lock_guard lock(all.mutex);
  std::uint64_t hash = all.calls.size();
  for (const auto& [key, entry] : all.calls) hash += mixed(key + (entry.run != nullptr));
  return hash;
}

namespace module {

void require_distinct_calls() {
  auto& all = registry();
  const std::lock_guard lock(all.mutex);
  if (all.collisions.empty()) return;
  const auto& [first, second] = all.collisions.front();
  throw UsageError(base::concat(
      "smp: two module types of this program have the same name, so other ranks cannot tell their "
      "calls apart: '",
      first.signature, "' and '", second.signature,
      "'. Rename one of the classes, or give their anonymous namespaces names."));
}

}  // namespace module
}  // namespace smp
