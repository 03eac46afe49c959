// What is known of a call before it has run: only what every call like it has returned so far.
#include "server/promises/expected_results.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace smp::server {
namespace expected_results_test {

ForwardResponse answer_of(std::vector<at::Tensor> tensors, TensorFlags requires_grad,
                          std::string bytes = "T") {
  ForwardResponse answer;
  answer.result = {std::move(bytes), std::move(tensors)};
  answer.requires_grad = std::move(requires_grad);
  return answer;
}

TEST(ExpectedResults, AreLikeTheAnswersSoFar) {
  ExpectedResults results;
  EXPECT_EQ(results.find(7), nullptr);
  results.learn(7, answer_of({at::ones({2}), at::ones({3}, at::kLong)}, {true, false}), true);
  const auto* expected = results.find(7);
  ASSERT_NE(expected, nullptr);
  EXPECT_FALSE(expected->refused);
  EXPECT_EQ(expected->bytes, "T");
  ASSERT_EQ(expected->outputs.size(), 2u);
  EXPECT_EQ(expected->outputs[0].dtype, at::kFloat);
  EXPECT_TRUE(expected->outputs[0].requires_grad);
  EXPECT_EQ(expected->outputs[1].dtype, at::kLong);
  EXPECT_EQ(results.find(8), nullptr);
  results.learn(7, answer_of({at::ones({5}), at::ones({1}, at::kLong)}, {true, false}), true);
  EXPECT_FALSE(expected->refused) << "sizes may differ";
}

TEST(ExpectedResults, AreNoneWhereAnswersDiffer) {
  const auto refused = [](const ForwardResponse& second) {
    ExpectedResults results;
    results.learn(1, answer_of({at::ones({2})}, {true}), true);
    results.learn(1, second, true);
    const bool at_first = results.find(1)->refused;
    results.learn(1, answer_of({at::ones({2})}, {true}), true);
    EXPECT_EQ(results.find(1)->refused, at_first) << "for good";
    return at_first;
  };
  EXPECT_FALSE(refused(answer_of({at::zeros({2})}, {true})));
  EXPECT_TRUE(refused(answer_of({at::ones({2}, at::kDouble)}, {true})));
  EXPECT_TRUE(refused(answer_of({at::Tensor()}, {false})));
  EXPECT_TRUE(refused(answer_of({at::ones({2}), at::ones({2})}, {true, true})));
  EXPECT_TRUE(refused(answer_of({at::ones({2})}, {true}, "U")));
  auto linked = answer_of({at::ones({2})}, {true});
  linked.links = Note("x");
  EXPECT_TRUE(refused(linked));
  auto changed = answer_of({at::ones({2})}, {true});
  changed.settings.emplace();
  EXPECT_TRUE(refused(changed));
}

/// A gradient that was not expected would be lost.
TEST(ExpectedResults, NeedGradientsUnlessTheyNeverCan) {
  ExpectedResults results;
  results.learn(1, answer_of({at::ones({2})}, {false}), /*grad=*/true);
  results.learn(2, answer_of({at::ones({2})}, {false}), /*grad=*/false);
  results.learn(3, answer_of({at::ones({2}, at::kLong)}, {false}), /*grad=*/true);
  EXPECT_TRUE(results.find(1)->refused);
  EXPECT_FALSE(results.find(2)->refused);
  EXPECT_FALSE(results.find(3)->refused);
}

/// A caller that needs a result at once gains nothing, but one that did so once may gain later.
TEST(ExpectedResults, AreWorthAPromiseWhereSomethingHappensMeanwhile) {
  ExpectedResult expected;
  EXPECT_TRUE(expected.promise_next());
  expected.at_once = true;
  int promised = 0;
  for (int call = 0; call < 640; ++call) promised += expected.promise_next() ? 1 : 0;
  EXPECT_EQ(promised, 10);
  EXPECT_FALSE(expected.promise_next());
  expected.passed_on = true;
  EXPECT_TRUE(expected.promise_next());
  expected.refused = true;
  EXPECT_FALSE(expected.promise_next());
}

TEST(ExpectedResults, AreOfOneKindOfCall) {
  ForwardRequest request;
  request.module = ModuleId{3};
  request.call = 99;
  request.arguments = {"abc", {at::ones({2}), at::Tensor()}};
  request.requires_grad = {true, false};
  const auto key = ExpectedResults::key_of(request);
  const auto differs = [&](auto change) {
    auto other = request;
    change(other);
    return ExpectedResults::key_of(other) != key;
  };
  EXPECT_FALSE(differs([](ForwardRequest& r) { r.microbatch = 5; }));
  EXPECT_FALSE(differs([](ForwardRequest& r) { r.arguments.tensors[0] = at::zeros({9}); }));
  EXPECT_TRUE(differs([](ForwardRequest& r) { r.module = ModuleId{4}; }));
  EXPECT_TRUE(differs([](ForwardRequest& r) { r.call = 98; }));
  EXPECT_TRUE(differs([](ForwardRequest& r) { r.arguments.bytes = "abd"; }));
  EXPECT_TRUE(
      differs([](ForwardRequest& r) { r.arguments.tensors[0] = at::ones({2}, at::kHalf); }));
  EXPECT_TRUE(differs([](ForwardRequest& r) { r.arguments.tensors[1] = at::ones({2}); }));
  EXPECT_TRUE(differs([](ForwardRequest& r) { r.requires_grad = {false, false}; }));
  EXPECT_TRUE(differs([](ForwardRequest& r) { r.modes.grad = !r.modes.grad; }));
  EXPECT_TRUE(differs([](ForwardRequest& r) { r.modes.autocast[0].enabled = true; }));
  EXPECT_TRUE(differs([](ForwardRequest& r) { r.settings = {false, 1, {}}; }));
}

}  // namespace expected_results_test
}  // namespace smp::server
