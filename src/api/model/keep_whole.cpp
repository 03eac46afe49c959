// api/model/keep_whole.cpp: see the header.
#include "api/model/keep_whole.h"

#include <torch/nn/module.h>

#include <algorithm>
#include <set>
#include <sstream>

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

std::set<std::string> types_in(const std::string& text) {
  std::set<std::string> types;
  std::istringstream list(text);
  for (std::string one; std::getline(list, one, ',');) {
    one.erase(0, one.find_first_not_of(' '));
    one.erase(one.find_last_not_of(' ') + 1);
    if (!one.empty()) types.insert(plain_type(one));
  }
  return types;
}

std::string type_of(const ModelDescription& model, std::size_t node) {
  return plain_type(model.modules[node]->name());
}

std::set<std::string> types_of(const std::vector<ModelDescription*>& models) {
  std::set<std::string> types;
  for (const auto* model : models) {
    for (std::size_t node = 0; node < model->modules.size(); ++node) {
      types.insert(type_of(*model, node));
    }
  }
  return types;
}

void require_known(const std::set<std::string>& wanted, const std::set<std::string>& known) {
  for (const auto& type : wanted) {
    SMP_REQUIRE(known.contains(type), "keep_whole: no module is a \"", type, "\"",
                base::did_you_mean(type, {known.begin(), known.end()}));
  }
}

void keep_whole(ModelDescription& model, const std::set<std::string>& types) {
  auto& nodes = model.tree.nodes;
  std::vector<int> whole(nodes.size(), -1);         // the outermost such module that this one is in
  for (std::size_t i = 0; i < nodes.size(); ++i) {  // parents come first
    if (nodes[i].parent >= 0) whole[i] = whole[static_cast<std::size_t>(nodes[i].parent)];
    if (whole[i] < 0) {
      if (types.contains(type_of(model, i))) whole[i] = static_cast<int>(i);
    } else if (nodes[i].movable()) {
      const auto outermost = static_cast<std::size_t>(whole[i]);
      nodes[i].stays_because =
          base::concat("keep_whole has ", type_of(model, outermost), ", and ",
                       partitioning::quoted_path(nodes[outermost].path), " is one");
    }
  }
}

}  // namespace

void keep_whole(const std::vector<ModelDescription*>& models, const std::string& types) {
  const auto wanted = types_in(types);
  if (wanted.empty()) return;
  require_known(wanted, types_of(models));
  for (auto* model : models) keep_whole(*model, wanted);
}

}  // namespace smp
