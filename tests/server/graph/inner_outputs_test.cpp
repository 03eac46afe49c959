// Outputs that lie inside the graph of other outputs.
#include "server/graph/inner_outputs.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <vector>

namespace smp::server {
namespace inner_outputs_test {

using at::Tensor;

std::vector<bool> inner_of(const std::vector<Tensor>& outputs, const std::vector<Tensor>& roots) {
  const auto flags = inner_outputs(outputs, roots);
  std::vector<bool> all;
  for (std::size_t i = 0; i < flags.size(); ++i) all.push_back(flags[i]);
  return all;
}
std::vector<bool> inner_of(const std::vector<Tensor>& outputs) {
  return inner_of(outputs, outputs);
}

using Flags = std::vector<bool>;
const Flags kNone;

TEST(InnerOutputs, LieBelowOthers) {
  const auto x = at::ones({4}).requires_grad_();
  const auto h = x * 2, y = (h + 1).tanh(), z = x * 3;
  EXPECT_EQ(inner_of({y, h, z}), (Flags{false, true, false}));
  EXPECT_EQ(inner_of({h, y}), (Flags{true, false}));
  EXPECT_EQ(inner_of({y, z}), kNone) << "they share x, which is no output";
  EXPECT_EQ(inner_of({y, x}), (Flags{false, true})) << "an argument, or a weight";
  EXPECT_EQ(inner_of({y}), kNone);
  EXPECT_EQ(inner_of({y, h}, {h}), kNone) << "the caller makes the other of what it has";
  EXPECT_EQ(inner_of({y, h}, {Tensor(), h}), kNone);
}

TEST(InnerOutputs, AreToldByTheOutputOfTheirNode) {
  const auto x = at::ones({4}).requires_grad_();
  const auto halves = (x * 2).split(2);
  EXPECT_EQ(inner_of({halves[0] + 1, halves[0], halves[1]}), (Flags{false, true, false}));
  EXPECT_EQ(inner_of({halves[0], halves[1]}), kNone);
}

TEST(InnerOutputs, NeedAGradient) {
  const auto x = at::ones({4}).requires_grad_();
  const auto h = x * 2;
  EXPECT_EQ(inner_of({h * 2, h.detach()}), kNone);
  EXPECT_EQ(inner_of({h.detach() * 2, h}), kNone);
  EXPECT_EQ(inner_of({h * 2, Tensor(), h, at::ones({2})}), (Flags{false, false, true, false}));
  const auto in_place = h * 1;
  const auto used = in_place * 3;
  in_place.add_(1);
  EXPECT_EQ(inner_of({used, in_place}), kNone) << "what was used is no output any more";
}

}  // namespace inner_outputs_test
}  // namespace smp::server
