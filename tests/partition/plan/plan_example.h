// A planned encoder-decoder for tests of tables and pictures: a trace and costs put together by
// hand, so that what a test expects can be worked out on paper.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "partition/plan/explain.h"
#include "partition/search/tree_builder.h"

namespace smp::partitioning {

/// Everything that explained_plan() refers to.
struct PlanExample {
  ModuleTree tree;
  simulate::Trace trace;
  CostTree costs;
  simulate::Machine machine;
  std::vector<int> stages;
  std::vector<std::string> by_hand;
  std::vector<StageMemory> memory;

  PartitionPlan plan() const {
    PlanFacts facts{tree,
                    trace,
                    costs,
                    machine,
                    stages,
                    by_hand,
                    memory,
                    {"search", 0.131, 0.12, 1.02},
                    {{"tree", 0.164, 0.25, 1.2}, {"contiguous", 0.14, 0.15, 1.02}},
                    "interleaved",
                    8};
    return explained_plan(facts);
  }
};

/// Every module is called once, by its parent, in order of registration; 1 KiB goes in, 2 KiB out.
inline simulate::Trace one_call_each(const ModuleTree& tree) {
  simulate::Trace trace;
  const auto call = [&](const auto& self, int module, int caller) -> void {
    const int index = static_cast<int>(trace.calls.size());
    simulate::TracedCall made;
    made.module = module;
    made.caller = caller;
    made.input_bytes = 1024;
    made.output_bytes = 2048;
    made.sequential = tree.nodes[module].sequential;
    trace.calls.push_back(made);
    for (const int child : tree.nodes[module].children) self(self, child, index);
  };
  call(call, 0, -1);
  return trace;
}

/// A node for each module, but one for modules that share a weight; costs are shares of the bytes.
inline CostTree costs_by_bytes(const ModuleTree& tree) {
  CostTree costs;
  std::vector<int> node_of_parameter(tree.parameters.size(), -1);
  for (std::size_t module = 0; module < tree.nodes.size(); ++module) {
    int node = -1;
    for (const OwnParameter& own : tree.nodes[module].parameters) {
      if (node_of_parameter[own.parameter] >= 0) node = node_of_parameter[own.parameter];
    }
    if (node < 0) {
      node = static_cast<int>(costs.nodes.size());
      costs.nodes.emplace_back();
    }
    costs.nodes[node].modules.push_back(static_cast<int>(module));
    costs.node_of_module.push_back(node);
    for (const OwnParameter& own : tree.nodes[module].parameters) {
      if (node_of_parameter[own.parameter] >= 0) continue;
      node_of_parameter[own.parameter] = node;
      costs.nodes[node].weight_bytes += tree.parameters[own.parameter].bytes;
    }
  }
  const auto total = static_cast<double>(tree.total_bytes());
  for (CostNode& node : costs.nodes) node.own = static_cast<double>(node.weight_bytes) / total;
  return costs;
}

/// Memory as with Adam, and activations that grow with the distance from the last stage.
inline std::vector<StageMemory> memory_by_bytes(const CostTree& costs,
                                                const std::vector<int>& stages, int pp_size) {
  std::vector<StageMemory> memory(pp_size);
  for (const CostNode& node : costs.nodes) {
    StageMemory& stage = memory[stages[node.modules.front()]];
    stage.weights += node.weight_bytes;
    stage.gradients += node.weight_bytes;
    stage.optimizer += 2 * node.weight_bytes;
  }
  for (int stage = 0; stage < pp_size; ++stage) {
    memory[stage].activations = (memory[stage].weights / 2) * (pp_size - stage);
    memory[stage].most_activations = (memory[stage].weights / 2) * pp_size;
  }
  return memory;
}

inline PlanExample example_of(ModuleTree tree, std::vector<int> stages, int pp_size) {
  PlanExample example;
  example.tree = std::move(tree);
  example.stages = std::move(stages);
  example.machine.stages = pp_size;
  example.trace = one_call_each(example.tree);
  example.costs = costs_by_bytes(example.tree);
  example.memory = memory_by_bytes(example.costs, example.stages, pp_size);
  return example;
}

/// Stages of an encoder_decoder() whose modules are cut, in order, where the bytes before them
/// reach the next even share. The head goes with the embedding.
inline std::vector<int> cut_in_order(const ModuleTree& tree, int pp_size) {
  const auto bytes_below = [&](const auto& self, int module) -> std::int64_t {
    std::int64_t sum = 0;
    for (const OwnParameter& own : tree.nodes[module].parameters) {
      sum += tree.parameters[own.parameter].bytes;
    }
    for (const int child : tree.nodes[module].children) sum += self(self, child);
    return sum;
  };
  std::vector<int> stages;
  std::int64_t before = 0;
  for (std::size_t i = 0; i < tree.nodes.size(); ++i) {
    const std::string& path = tree.nodes[i].path;
    const bool opened = path.empty() || path == "encoder" || path == "decoder" || path == "lm_head";
    const int parent = opened ? 0 : tree.nodes[i].parent;
    const bool piece = !opened && tree.nodes[i].movable() && stages[parent] == 0 &&
                       (parent == 0 || !tree.nodes[parent].movable() || path.ends_with("norm"));
    stages.push_back(opened ? 0 : stages[parent]);
    if (!piece) continue;
    const std::int64_t nearly = tree.total_bytes() - tree.total_bytes() / 1000;
    stages.back() =
        static_cast<int>(std::min<std::int64_t>(before * pp_size / nearly, pp_size - 1));
    before += bytes_below(bytes_below, static_cast<int>(i));
  }
  return stages;
}

/// An encoder-decoder of 1 MiB a block, with an embedding of 4 MiB that the head uses as well.
inline PlanExample t5_example(int blocks = 6, int pp_size = 3) {
  constexpr std::int64_t kMiB = 1 << 20;
  ModuleTree tree = encoder_decoder(blocks, 4 * kMiB, kMiB, true);
  std::vector<int> stages = cut_in_order(tree, pp_size);
  return example_of(std::move(tree), std::move(stages), pp_size);
}

}  // namespace smp::partitioning
