// server/running/inside_node.h: whether the calling fiber runs code of an autograd node.
#pragma once

namespace smp::server {

/// Forbids suspension while code of a node of our executor runs. Threads: the rank's; balanced
/// whenever the thread changes fibers, because none is suspended inside a node.
class InsideNode {
 public:
  InsideNode() noexcept;
  ~InsideNode();
  InsideNode(const InsideNode&) = delete;
  InsideNode& operator=(const InsideNode&) = delete;
};

/// True if the calling fiber is inside Node::apply, of our executor or of LibTorch's engine. No
/// fiber may be suspended there: the frames below hold locks and guards of the thread.
bool inside_node() noexcept;
/// True if the calling fiber is inside a node of our executor. A pass of LibTorch's engine that is
/// begun there is part of the backward that runs.
bool inside_own_node() noexcept;

}  // namespace smp::server
