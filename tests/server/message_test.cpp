// Every field of a message crosses the wire.
#include "server/message.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <set>

#include "smp/error.h"

namespace smp::server {
namespace {

TEST(Message, AllFieldsComeBack) {
  Message sent;
  sent.kind = Kind::kBackward;
  sent.step = 41;
  sent.request = 7;
  sent.record = 9;
  sent.module = 3;
  sent.call = 0xfedcba9876543210u;
  sent.microbatch = 5;
  sent.late = true;
  sent.frozen_hash = 77;
  sent.modes = {false, false, true, at::kHalf};
  sent.keep_graph = true;
  sent.requires_grad = std::string("\0\1", 2);
  sent.body = std::string("a\0b", 3);
  sent.tensors = {at::ones({2}), {}};
  sent.failure = Failure{2, "kaboom"};

  const auto got = decode(encode(Message(sent)));
  EXPECT_EQ(got.kind, sent.kind);
  EXPECT_EQ(got.step, sent.step);
  EXPECT_EQ(got.request, sent.request);
  EXPECT_EQ(got.record, sent.record);
  EXPECT_EQ(got.module, sent.module);
  EXPECT_EQ(got.call, sent.call);
  EXPECT_EQ(got.microbatch, sent.microbatch);
  EXPECT_TRUE(got.late);
  EXPECT_EQ(got.frozen_hash, sent.frozen_hash);
  EXPECT_FALSE(got.modes.grad_mode);
  EXPECT_FALSE(got.modes.training);
  EXPECT_TRUE(got.modes.autocast);
  EXPECT_EQ(got.modes.autocast_dtype, at::kHalf);
  EXPECT_TRUE(got.keep_graph);
  EXPECT_EQ(got.requires_grad, sent.requires_grad);
  EXPECT_EQ(got.body, sent.body);
  ASSERT_EQ(got.tensors.size(), 2u);
  EXPECT_TRUE(at::equal(got.tensors[0], at::ones({2})));
  EXPECT_FALSE(got.tensors[1].defined());
  ASSERT_TRUE(got.failure.has_value());
  EXPECT_EQ(got.failure->rank, 2);
  EXPECT_EQ(got.failure->text, "kaboom");
}

TEST(Message, AnEmptyOneTakesNothingFromTheOneBefore) {
  Message full;
  full.body = "text";
  full.failure = Failure{1, "kaboom"};
  encode(std::move(full));
  const auto got = decode(encode({}));
  EXPECT_TRUE(got.body.empty());
  EXPECT_FALSE(got.failure.has_value());
  EXPECT_EQ(got.module, -1);
  EXPECT_EQ(got.microbatch, -1);
}

TEST(Message, ABrokenHeaderIsAnError) { EXPECT_THROW(decode({"\xff\xff\xff", {}}), InternalError); }

TEST(Message, EveryKindHasItsOwnName) {
  std::set<std::string> names;
  for (int kind = 1; kind <= static_cast<int>(Kind::kFinish); ++kind) {
    names.insert(name_of(static_cast<Kind>(kind)));
  }
  EXPECT_EQ(names.size(), static_cast<std::size_t>(Kind::kFinish));
  EXPECT_EQ(names.count("unknown"), 0u);
}

}  // namespace
}  // namespace smp::server
