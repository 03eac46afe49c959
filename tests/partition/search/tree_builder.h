// Builds module trees for tests, so that they need no model.
#pragma once

#include <string>
#include <vector>

#include "partition/model/module_tree.h"

namespace smp::partitioning {

class TreeBuilder {
 public:
  TreeBuilder() { tree.add("", -1); }

  /// Adds the module `path`, whose parent was added before, with one weight of `bytes` (0: none).
  int module(const std::string& path, std::int64_t bytes = 0) {
    const auto dot = path.rfind('.');
    const int parent = dot == std::string::npos ? 0 : tree.find(path.substr(0, dot));
    const int node = tree.add(path, parent);
    if (bytes > 0) weight(node, "weight", bytes);
    return node;
  }

  /// Adds a module that cannot leave its parent.
  int bound(const std::string& path, std::int64_t bytes = 0) {
    const int node = module(path, bytes);
    tree.nodes[node].stays_because = "its class was not declared with SMP_MODULE";
    return node;
  }

  int weight(int node, const std::string& name, std::int64_t bytes) {
    const std::string& path = tree.nodes[node].path;
    const int index = static_cast<int>(tree.parameters.size());
    tree.parameters.push_back({path.empty() ? name : path + "." + name,
                               "float32[" + std::to_string(bytes / 4) + "]", bytes / 4, bytes,
                               bytes});
    tree.nodes[node].parameters.push_back({name, index});
    return index;
  }

  /// Gives `node` the weight `parameter` of another module as well.
  void tie(int node, int parameter, const std::string& name = "weight") {
    tree.nodes[node].parameters.push_back({name, parameter});
  }

  ModuleTree tree;
};

/// What a planner is told that may put every module anywhere.
inline std::vector<int> nothing_fixed(const ModuleTree& tree) {
  return std::vector<int>(tree.nodes.size(), -1);
}

/// An encoder-decoder with `blocks` blocks on each side and an embedding used by both and by the
/// head.
inline ModuleTree encoder_decoder(int blocks, std::int64_t embedding, std::int64_t block,
                                  bool tied) {
  TreeBuilder build;
  const int shared = build.module("shared");
  const int table = build.weight(shared, "weight", embedding);
  for (const std::string side : {"encoder", "decoder"}) {
    build.module(side);
    build.bound(side + ".block");
    for (int i = 0; i < blocks; ++i) {
      const std::string path = side + ".block." + std::to_string(i);
      build.module(path);
      build.module(path + ".attention", block / 2);
      build.module(path + ".feed_forward", block - block / 2);
      build.module(path + ".dropout");
    }
    build.module(side + ".final_norm", 4);
  }
  const int head = build.module("lm_head");
  if (tied) {
    build.tie(head, table);
  } else {
    build.weight(head, "weight", embedding);
  }
  return build.tree;
}

}  // namespace smp::partitioning
