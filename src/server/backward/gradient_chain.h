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

/// Nobody looks at the node's gradients here, and none has come.
bool may_be_ahead(const GraphNode& entry);

/// `node`, all of whose gradients have come, and the nodes that are reached through it alone: each
/// input by one gradient, which nobody wants to see here. Of those, GraphNode::started_ahead is
/// set.
/// Empty if there are none but `node`.
std::vector<ChainLink> chain_from(BackwardGraph& graph, NodeIndex index, AsyncNode& node,
                                  const BackwardOptions& options);

/// Starts them. The reply of the first is `done`; the others get their places in `replies` later
/// (ReplyQueue::enqueue), when they would have been started by themselves: so sums of gradients are
/// added up in the same order as without chains.
void start_chain(const std::vector<ChainLink>& chain, variable_list&& gradients,
                 const BackwardOptions& options, Completion&& done, ReplyQueue& replies);

}  // namespace smp::server
