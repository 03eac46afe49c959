// trial/graph/traced_graph.h: the autograd graph of a traced body, and what made each of its nodes.
#pragma once

#include <cstdint>
#include <vector>

#include "simulate/trace.h"
#include "trial/graph/call_recorder.h"
#include "trial/graph/saved_tensors.h"

namespace smp::partitioning {

/// A compute interval of the trace of one of several models. The body after its last call belongs
/// to model 0 if no model runs.
struct ModelInterval {
  int model = 0;
  simulate::IntervalId interval;
};

/// The nodes of the graph and, in vectors with one element per node, what is known of each.
struct TracedGraph {
  using Call = CallRecorder::Call;

  const std::vector<KeepingNode>& nodes;
  std::vector<simulate::Trace>& traces;  ///< one per model
  std::vector<ModelInterval> intervals = {};
  std::vector<Call> calls = {};
  std::vector<std::int64_t> freed = {};  ///< bytes that the node's backward frees

  simulate::TracedCall& traced(const Call& call) const {
    return traces.at(call.model).calls.at(call.number);
  }
  simulate::ComputeInterval& traced(const ModelInterval& id) const {
    if (id.interval.call < 0) return traces.at(id.model).body_after;
    auto& call = traced(Call{id.model, id.interval.call});
    return id.interval.before ? call.before : call.after;
  }
  Call caller_of(const Call& call) const {
    const int caller = traced(call).caller;
    return caller < 0 ? Call{} : Call{call.model, caller};
  }
  Call call_of(const ModelInterval& id) const {
    if (id.interval.call < 0) return {};
    const Call call{id.model, id.interval.call};
    return id.interval.before ? caller_of(call) : call;
  }
};

}  // namespace smp::partitioning
