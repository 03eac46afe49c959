// A pass that ends at a border, and one that goes on there, are one pass of LibTorch.
#include "server/graph/graph_border.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "server/backward/executor_testing.h"

namespace smp::server::test {
namespace {

struct Made {
  Tensors leaves;
  at::Tensor inner, y, slope;
};

/// y, and the square of its gradient by the first leaf, which leads through y's graph.
Made make() {
  Made made{leaves(2), {}, {}, {}};
  made.inner = made.leaves[0].mm(made.leaves[1]).tanh();
  made.y = made.inner * made.inner;
  made.slope = grad(Engine::kStock, {made.y}, {made.leaves[0]},
                    {.keep_graph = true, .create_graph = true})[0]
                   .square();
  return made;
}

TEST(GraphBorder, ContainsWhatIsBelow) {
  const auto made = make();
  const GraphBorder border(edges_of({made.y, made.y}));
  EXPECT_TRUE(border.contains(*made.y.grad_fn()));
  EXPECT_TRUE(border.contains(*made.inner.grad_fn()));
  EXPECT_TRUE(border.contains(*edges_of({made.leaves[1]})[0].function));
  EXPECT_FALSE(border.contains(*made.slope.grad_fn()));
}

TEST(GraphBorder, KeepsWhatTheNextPassTakes) {
  const auto one = make(), other = make();
  int calls = 0;
  other.inner.register_hook([&](const at::Tensor& gradient) {
    ++calls;
    return gradient * 1;
  });
  backward(Engine::kStock, {one.y, one.slope});
  GraphBorder border(edges_of({other.y}));
  backward(Engine::kOurs, {other.slope}, {}, {.keep_graph = true, .border = &border});
  EXPECT_EQ(calls, 0);
  for (const auto& leaf : other.leaves) EXPECT_FALSE(leaf.grad().defined());
  auto rest = border.take();
  EXPECT_FALSE(rest.edges.empty());
  rest.edges.push_back(edges_of({other.y})[0]);
  rest.gradients.push_back(at::ones_like(other.y));
  run_backward(rest.edges, rest.gradients);
  EXPECT_EQ(calls, 1);
  EXPECT_TRUE(close(gradients_of(one.leaves), gradients_of(other.leaves), 1e-14));
}

// A root may lie beyond it already.
TEST(GraphBorder, KeepsTheGradientsOfRoots) {
  const auto made = make();
  GraphBorder border(edges_of({made.y}));
  backward(Engine::kOurs, {made.inner}, {}, {.keep_graph = true, .border = &border});
  const auto rest = border.take();
  ASSERT_EQ(rest.edges.size(), 1U);
  EXPECT_EQ(rest.edges[0].function.get(), made.inner.grad_fn().get());
  EXPECT_TRUE(at::equal(rest.gradients[0], at::ones_like(made.inner)));
}

// Something that is no gradient may have reached a node.
TEST(GraphBorder, KeepsThatANodeIsReached) {
  const auto made = make();
  GraphBorder border(edges_of({made.y}));
  run_backward(edges_of({made.inner}), {at::Tensor()}, {.keep_graph = true, .border = &border});
  const auto rest = border.take();
  ASSERT_EQ(rest.edges.size(), 1U);
  EXPECT_EQ(rest.edges[0].function.get(), made.inner.grad_fn().get());
  EXPECT_FALSE(rest.gradients[0].defined());
}

}  // namespace
}  // namespace smp::server::test
