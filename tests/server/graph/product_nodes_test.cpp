#include "server/graph/product_nodes.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace smp::server {
namespace {

at::Tensor leaf(at::IntArrayRef shape) { return at::ones(shape).requires_grad_(); }

TEST(ProductNodes, AreProductsAndConvolutions) {
  const auto a = leaf({2, 2}), v = leaf({2}), batch = leaf({3, 2, 2});
  for (const auto& product :
       {a.mm(a), at::addmm(a, a, a), batch.bmm(batch), at::baddbmm(batch, batch, batch),
        at::addbmm(a, batch, batch), a.mv(v), at::addmv(v, a, v),
        at::conv2d(leaf({1, 1, 3, 3}), leaf({1, 1, 2, 2})), at::linear(a, a, v)}) {
    EXPECT_TRUE(computes_gradients_apart(*product.grad_fn())) << product.grad_fn()->name();
  }
  for (const auto& other : {a * a, a + a, at::layer_norm(a, {2}, v, v)}) {
    EXPECT_FALSE(computes_gradients_apart(*other.grad_fn())) << other.grad_fn()->name();
  }
}

TEST(ProductNodes, EdgesThatAreTakenComeBack) {
  const auto a = leaf({2, 2});
  const auto product = a.mm(a * 2);
  auto& node = *product.grad_fn();
  const auto edges = node.next_edges();
  {
    MaskedEdges mask(node);
    mask.take(1);
    EXPECT_TRUE(node.next_edge(0).is_valid());
    EXPECT_FALSE(node.next_edge(1).is_valid());
    const auto gradients = node({at::ones({2, 2})});
    EXPECT_TRUE(gradients.at(0).defined());
    EXPECT_FALSE(gradients.at(1).defined());
  }
  EXPECT_EQ(node.next_edges(), edges);
}

}  // namespace
}  // namespace smp::server
