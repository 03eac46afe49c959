// The models that the partitioner is measured on are what they claim to be.
#include "support/model_families.h"

#include <gtest/gtest.h>

#include <set>

namespace smp::partitioning {
namespace {

std::int64_t weights(const SyntheticModel& model) {
  std::int64_t elements = 0;
  for (const TreeParameter& parameter : model.tree.parameters) elements += parameter.elements;
  return elements;
}

double seconds(const SyntheticModel& model) {
  double sum = model.trace.body_after.seconds;
  for (const simulate::TracedCall& call : model.trace.calls)
    sum += call.before.seconds + call.after.seconds;
  return sum;
}

TEST(ModelFamilies, HaveTheWeightsOfTheirOriginals) {
  // GPT-2 small has 124.4 M parameters, T5-11B 11.3 G, both with tied heads.
  EXPECT_NEAR(static_cast<double>(weights(
                  nested_gpt({.layers = 12, .width = 768, .vocabulary = 50'257, .length = 1024}))),
              124.4e6, 0.2e6);
  const T5Size t5_11b{.encoder_layers = 24,
                      .decoder_layers = 24,
                      .width = 1024,
                      .inner = 16'384,
                      .feed_forward = 65'536};
  EXPECT_NEAR(static_cast<double>(weights(t5(t5_11b))), 11.31e9, 0.05e9);
}

TEST(ModelFamilies, TakeTheTimeOfTheirOperations) {
  // Two operations a weight and token, without the embeddings, plus the attention itself.
  const GptSize size{.layers = 12, .width = 1024, .vocabulary = 8, .rows = 2, .length = 512};
  const double blocks = 12 * 12 * 1024.0 * 1024 * 2 * 1024;
  const double attention = 12 * 4 * 2 * 512.0 * 512 * 1024;
  EXPECT_NEAR(seconds(flat_gpt(size)), (blocks + attention) / 1e11, 0.2 * blocks / 1e11);
}

TEST(ModelFamilies, HaveTracesInWhichCallersComeFirstAndParentsCall) {
  for (const std::string& family : family_names()) {
    const SyntheticModel model = family_member(family, 7);
    ASSERT_EQ(model.trace.calls.front().module, 0) << family;
    std::set<int> called;
    for (std::size_t i = 0; i < model.trace.calls.size(); ++i) {
      const simulate::TracedCall& call = model.trace.calls[i];
      ASSERT_LT(call.caller, static_cast<int>(i));
      called.insert(call.module);
      if (i == 0) continue;
      int parent = model.tree.nodes[call.module].parent;
      while (!model.tree.nodes[parent].movable()) parent = model.tree.nodes[parent].parent;
      ASSERT_EQ(model.trace.calls[call.caller].module, parent) << family;
    }
    for (std::size_t i = 0; i < model.tree.nodes.size(); ++i) {
      ASSERT_EQ(called.count(static_cast<int>(i)), model.tree.nodes[i].movable()) << family;
    }
  }
}

TEST(ModelFamilies, AreTheSameForTheSameSeed) {
  for (const std::string& family : family_names()) {
    const SyntheticModel a = family_member(family, 3), b = family_member(family, 3);
    EXPECT_EQ(a.tree.all_paths(), b.tree.all_paths());
    EXPECT_DOUBLE_EQ(seconds(a), seconds(b));
    EXPECT_NE(weights(a), weights(family_member(family, 4))) << family;
  }
}

}  // namespace
}  // namespace smp::partitioning
