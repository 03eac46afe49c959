// server/running/inside_node.cpp: counts the nodes on the thread's stack.
#include "server/running/inside_node.h"

#include <torch/csrc/autograd/graph_task.h>

namespace smp::server {
namespace {

thread_local int nodes_on_stack = 0;

}  // namespace

InsideNode::InsideNode() noexcept { ++nodes_on_stack; }
InsideNode::~InsideNode() { --nodes_on_stack; }

bool inside_own_node() noexcept { return nodes_on_stack > 0; }

bool inside_node() noexcept {
  return inside_own_node() || torch::autograd::get_current_graph_task_id() != -1;
}

}  // namespace smp::server
