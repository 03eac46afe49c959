// api/model/module_types.cpp: see the header.
#include "api/model/module_types.h"

#include <torch/nn/module.h>

#include <algorithm>
#include <sstream>
#include <utility>

#include "base/check.h"
#include "base/text/edit_distance.h"

namespace smp {
namespace {

/// Returns "Attention" for "(anonymous namespace)::t5::AttentionImpl" and for "Attention".
std::string plain_type(std::string name) {
  name.resize(std::min(name.find('<'), name.size()));
  const auto scope = name.rfind("::");
  if (scope != std::string::npos) name.erase(0, scope + 2);
  const std::string suffix = "Impl";
  if (name.size() > suffix.size() && name.ends_with(suffix)) {
    name.resize(name.size() - suffix.size());
  }
  return name;
}

}  // namespace

ModuleTypes::ModuleTypes(std::string key, const std::string& types) : key_(std::move(key)) {
  std::istringstream list(types);
  for (std::string one; std::getline(list, one, ',');) {
    one.erase(0, one.find_first_not_of(' '));
    one.erase(one.find_last_not_of(' ') + 1);
    if (!one.empty()) types_.insert(plain_type(one));
  }
}

std::string ModuleTypes::name_of(const torch::nn::Module& module) {
  return plain_type(module.name());
}

bool ModuleTypes::contain(const torch::nn::Module& module) const {
  return types_.contains(name_of(module));
}

void ModuleTypes::require_known(const std::vector<const torch::nn::Module*>& models) const {
  std::set<std::string> known;
  for (const auto* model : models) {
    known.insert(name_of(*model));
    for (const auto& module : model->modules(/*include_self=*/false))
      known.insert(name_of(*module));
  }
  std::string all;
  for (const auto& type : known) all += (all.empty() ? "" : ", ") + type;
  for (const auto& type : types_) {
    SMP_REQUIRE(known.contains(type), key_, ": no module is a \"", type, "\" (there are ", all, ")",
                base::did_you_mean(type, {known.begin(), known.end()}));
  }
}

}  // namespace smp
