// partition/model/count_trace.cpp: one walk over the tree.
#include "partition/model/count_trace.h"

#include "partition/model/kept_state.h"

namespace smp::partitioning {
namespace {

/// The time that a module is assumed to take when nothing was measured: much more than a message
/// takes, so that stages matter.
constexpr double kCountedSeconds = 1e-3;

class CountingWalk {
 public:
  explicit CountingWalk(const ModuleTree& tree) : tree_(tree) {
    trace.source = simulate::CostSource::kCounts;
    visit(0, -1);
  }
  simulate::Trace trace;

 private:
  void visit(int module, int caller) {
    const int call = static_cast<int>(trace.calls.size());
    trace.calls.push_back({.module = module,
                           .caller = caller,
                           .after = {.seconds = kCountedSeconds},
                           .sequential = tree_.nodes[module].sequential});
    for (const int child : tree_.nodes[module].children) visit(child, call);
  }

  const ModuleTree& tree_;
};

}  // namespace

simulate::Trace count_trace(const ModuleTree& tree) { return CountingWalk(tree).trace; }

simulate::Trace trace_to_plan(const ModuleTree& tree, const simulate::Trace& traced) {
  simulate::Trace trace = traced.calls_nothing() ? count_trace(tree) : traced;
  trace.state = all_state(tree, traced.state);
  trace.recomputed = traced.recomputed;
  return trace;
}

}  // namespace smp::partitioning
