// server/backward/gradient_chain.h: AsyncNodes that a backward pass starts together, because all
// gradients of one come from another (docs/design.md, Promised outputs). Threads: the rank's.
#pragma once

#include <vector>

#include "server/backward/backward_graph.h"
#include "server/backward/executor.h"
#include "server/backward/reply_queue.h"

namespace smp::server {

struct ChainLink {
  NodeIndex index;
  AsyncNode* node;
  AsyncNode::Paths paths = {};  ///< from the link before, and to later ones
};

/// True if nobody looks at the node's gradients on this rank, and none has come.
bool may_be_ahead(const GraphNode& entry);

/// Returns `node`, all of whose gradients have come, and the nodes that are reached through it
/// alone: each input by one gradient, which nobody looks at on this rank. Sets
/// GraphNode::started_ahead of the latter. Empty if there are none but `node`.
std::vector<ChainLink> chain_from(BackwardGraph& graph, NodeIndex index, AsyncNode& node,
                                  const BackwardOptions& options);

/// Starts the nodes of `chain`. The reply of the first goes to `done`; the others get their places
/// in `replies` later (ReplyQueue::enqueue), when they would have been started by themselves: so
/// sums of gradients are added up in the same order as without chains.
void start_chain(const std::vector<ChainLink>& chain, variable_list&& gradients,
                 const BackwardOptions& options, Completion&& done, ReplyQueue& replies);

}  // namespace smp::server
