// Runs of a tracer, and of an operator meter, for tests of what they see.
#pragma once

#include <torch/nn/module.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "fiber/scheduler.h"
#include "smp/detail/routed.h"
#include "trial/operators/operator_watch.h"
#include "trial/tracer/tracer.h"

namespace smp::partitioning {

/// A model whose modules are all routed, as a tree.
struct Described {
  explicit Described(torch::nn::Module& model) { visit(model, "", -1); }

  void visit(torch::nn::Module& module, const std::string& path, int parent) {
    const int node = tree.add(path, parent);
    tree.nodes[node].sequential = module.name().find("Sequential") != std::string::npos;
    modules.push_back(&module);
    routed.push_back(dynamic_cast<RoutedBase*>(&module));
    for (const auto& own : module.named_parameters(false)) {
      const auto [known, fresh] = numbers.emplace(own.value().unsafeGetTensorImpl(),
                                                  static_cast<int>(tree.parameters.size()));
      if (fresh) tree.parameters.push_back({path + "." + own.key(), "", own.value().numel(), 0});
      tree.nodes[node].parameters.push_back({own.key(), known->second});
    }
    for (const auto& child : module.named_children()) {
      if (tree.find(child.key()) >= 0) continue;
      visit(*child.value(), path.empty() ? child.key() : path + "." + child.key(), node);
    }
  }

  ModuleTree tree;
  std::vector<torch::nn::Module*> modules;
  std::vector<RoutedBase*> routed;
  std::map<const void*, int> numbers;
};

inline simulate::Trace trace(torch::nn::Module& model, const Tracer::Body& body, int repeats = 0) {
  const Described described(model);
  Tracer tracer({{&described.tree, &described.modules, &described.routed}}, 1);
  return tracer.run({body}, repeats).at(0);
}

struct Measured {
  double flops;
  double seconds;
  simulate::IntervalTimes times;
};

/// What a roofline says of the operators of `run`.
inline Measured meter(const std::function<void()>& run, const std::string& device = "cpu") {
  OperatorMeter meter({base::find_device(device)});
  const OperatorWatch watch(meter);
  run();
  const auto& times = meter.times().front();
  return {meter.flops(), times.forward, times};
}

}  // namespace smp::partitioning
