// partition/model/module_tree.cpp: small questions to a module tree.
#include "partition/model/module_tree.h"

#include <algorithm>
#include <utility>

#include "base/text/excerpt.h"

namespace smp::partitioning {

int ModuleTree::add(std::string path, int parent) {
  const int index = static_cast<int>(nodes.size());
  ModuleNode node;
  node.path = std::move(path);
  node.parent = parent;
  nodes.push_back(std::move(node));
  if (parent >= 0) nodes[parent].children.push_back(index);
  return index;
}

int ModuleTree::find(const std::string& path) const {
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const ModuleNode& node = nodes[i];
    const auto& aliases = node.aliases;
    if (node.path == path || std::find(aliases.begin(), aliases.end(), path) != aliases.end()) {
      return static_cast<int>(i);
    }
  }
  return -1;
}

std::vector<std::string> ModuleTree::all_paths() const {
  std::vector<std::string> paths;
  for (const ModuleNode& node : nodes) {
    paths.push_back(node.path);
    paths.insert(paths.end(), node.aliases.begin(), node.aliases.end());
  }
  return paths;
}

std::int64_t ModuleTree::total_bytes() const {
  std::int64_t sum = 0;
  for (const TreeParameter& parameter : parameters) sum += parameter.bytes;
  return sum;
}

bool ModuleTree::can_be_cut() const {
  return std::any_of(nodes.begin() + 1, nodes.end(),
                     [](const ModuleNode& node) { return node.movable(); });
}

std::string quoted_path(const std::string& path) {
  return path.empty() ? "the model itself" : "\"" + base::excerpt(path) + "\"";
}

}  // namespace smp::partitioning
