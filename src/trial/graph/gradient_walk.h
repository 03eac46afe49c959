// trial/graph/gradient_walk.h: the gradients that are live in a backward pass (paper App. C.1).
#pragma once

#include "trial/graph/traced_graph.h"

namespace smp::partitioning {

/// Walks the graph as the executor would, with gradients that are no more than their sizes, and
/// fills the traces' gradient_bytes and caller_gradient_bytes.
void account_gradients(const TracedGraph& graph);

}  // namespace smp::partitioning
