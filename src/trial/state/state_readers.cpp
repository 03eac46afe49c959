// trial/state/state_readers.cpp: group testing.
#include "trial/state/state_readers.h"

#include <algorithm>
#include <iterator>
#include <string>

namespace smp::partitioning {
namespace {

using simulate::StateKind;

constexpr int kMostRuns = 64;

class ReaderSearch {
 public:
  explicit ReaderSearch(const Differs& differs) : differs_(differs) {}

  bool differs(const std::vector<KeptMembers>& members, const std::set<ModelModule>& readers) {
    if (members.empty() || readers.empty()) return false;
    return runs_++ >= kMostRuns || differs_(members, readers);
  }

  std::set<ModelModule> readers_of(const std::vector<KeptMembers>& members,
                                   const std::set<ModelModule>& modules) {
    if (!differs(members, modules)) return {};
    if (modules.size() == 1) return modules;
    const auto half = std::next(modules.begin(), static_cast<std::ptrdiff_t>(modules.size() / 2));
    auto found = readers_of(members, {modules.begin(), half});
    found.merge(readers_of(members, {half, modules.end()}));
    return found;
  }

 private:
  const Differs& differs_;
  int runs_ = 0;
};

void note(simulate::Trace& trace, int module, const std::string& what) {
  auto found = std::find_if(trace.state.begin(), trace.state.end(),
                            [&](const auto& change) { return change.module == module; });
  if (found == trace.state.end()) {
    trace.state.push_back({module, StateKind::kShared, what});
  } else if (found->kind != StateKind::kShared) {
    *found = {module, StateKind::kShared, what};
  }
}

/// Returns the owner of the members as "'encoder.patch'"; if there are several, the first "or
/// another module".
std::string names_of(const std::vector<KeptMembers>& members,
                     const std::vector<const ModuleTree*>& trees) {
  const auto [model, module] = members.front().owner;
  const auto& path =
      trees[static_cast<std::size_t>(model)]->nodes[static_cast<std::size_t>(module)].path;
  const auto name = path.empty() ? std::string("the model itself") : "'" + path + "'";
  std::set<ModelModule> owners;
  for (const auto& own : members) owners.insert(own.owner);
  return owners.size() == 1 ? name : name + " or another module";
}

std::vector<KeptMembers> read_caches(const std::vector<KeptMembers>& members,
                                     const std::set<ModelModule>& modules, ReaderSearch& search) {
  std::vector<KeptMembers> caches, read;
  for (const auto& kept : members) {
    if (!kept.always_change) caches.push_back(kept);
  }
  if (!search.differs(caches, modules)) return {};
  for (const auto& cache : caches) {
    if (caches.size() == 1 || search.differs({cache}, modules)) read.push_back(cache);
  }
  return read;
}

}  // namespace

void note_readers(const std::vector<KeptMembers>& members, const std::set<ModelModule>& modules,
                  const std::vector<const ModuleTree*>& trees, const Differs& differs,
                  std::vector<simulate::Trace>& traces) {
  ReaderSearch search(differs);
  auto trace_of = [&](int model) -> auto& { return traces[static_cast<std::size_t>(model)]; };
  auto shared = read_caches(members, modules, search);
  for (const auto& cache : shared) {
    note(trace_of(cache.owner.first), cache.owner.second,
         "sets members at its first call that other code reads");
  }
  for (const auto& kept : members) {
    if (kept.always_change) shared.push_back(kept);
  }
  auto elsewhere = modules;
  for (const auto& kept : shared) {
    const auto [model, module] = kept.owner;
    const auto& nodes = trees[static_cast<std::size_t>(model)]->nodes;
    for (int m = module; m >= 0; m = nodes[static_cast<std::size_t>(m)].parent) {
      elsewhere.erase({model, m});
    }
  }
  const auto readers = search.readers_of(shared, elsewhere);
  if (readers.empty()) return;
  const auto what = "reads members that " + names_of(shared, trees) + " sets";
  for (const auto& [model, module] : readers) note(trace_of(model), module, what);
}

}  // namespace smp::partitioning
