// server/graph/product_nodes.h: nodes whose gradients are computed apart from each other.
#pragma once

#include <torch/csrc/autograd/function.h>

#include <vector>

namespace smp::server {

/// True if `node` is a product or a convolution of LibTorch. Its gradients of inputs and of weights
/// can be computed one by one, with the same bits as both at once, since it leaves out those
/// without a next edge. Other nodes share work between their gradients.
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
