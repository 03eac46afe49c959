// api/model/keep_whole.cpp: see the header.
#include "api/model/keep_whole.h"

#include <cstddef>

#include "base/check.h"

namespace smp {
namespace {

void keep_whole(ModelDescription& model, const ModuleTypes& types) {
  auto& nodes = model.tree.nodes;
  std::vector<int> whole(nodes.size(), -1);         // the outermost such module that this one is in
  for (std::size_t i = 0; i < nodes.size(); ++i) {  // parents come first
    if (nodes[i].parent >= 0) whole[i] = whole[static_cast<std::size_t>(nodes[i].parent)];
    if (whole[i] < 0) {
      if (types.contain(*model.modules[i])) whole[i] = static_cast<int>(i);
    } else if (nodes[i].movable()) {
      const auto outermost = static_cast<std::size_t>(whole[i]);
      nodes[i].stays_because =
          base::concat("keep_whole has ", ModuleTypes::name_of(*model.modules[outermost]), ", and ",
                       partitioning::quoted_path(nodes[outermost].path), " is one");
    }
  }
}

}  // namespace

void keep_whole(const std::vector<ModelDescription*>& models, const ModuleTypes& types) {
  for (auto* model : models) keep_whole(*model, types);
}

}  // namespace smp
