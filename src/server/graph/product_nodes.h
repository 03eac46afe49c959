// server/graph/product_nodes.h: nodes whose gradients are computed apart from each other.
#pragma once

#include <torch/csrc/autograd/function.h>

#include <vector>

namespace smp::server {

/// Whether `node` is one of LibTorch's whose gradients of inputs and of weights are computed one by
/// one, with the bits of both at once, and which leaves out what has no next edge: products and
/// convolutions. Others share work between their gradients.
bool computes_gradients_apart(const torch::autograd::Node& node) noexcept;

/// Takes next edges from a node, so that it leaves their gradients out, and gives them back. The
/// fiber must not be suspended meanwhile: nodes may be shared.
class MaskedEdges {
 public:
  explicit MaskedEdges(torch::autograd::Node& node) : node_(node) {}
  ~MaskedEdges();
  MaskedEdges(const MaskedEdges&) = delete;
  MaskedEdges& operator=(const MaskedEdges&) = delete;

  void take(std::size_t edge);

 private:
  struct Taken {
    std::size_t index;
    torch::autograd::Edge edge;
  };
  torch::autograd::Node& node_;
  std::vector<Taken> taken_;
};

}  // namespace smp::server
