// The order of keys is that of the ordinals they are made of, and their bytes travel.
#include "server/protocol/order_key.h"

#include <gmock/gmock.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "smp/error.h"

namespace smp::server {
namespace {

using Ordinals = std::vector<std::uint32_t>;

OrderKey key_of(const Ordinals& ordinals) {
  OrderKey key;
  for (const auto ordinal : ordinals) key.append(ordinal);
  return key;
}

/// Many small ones, as programs have them, and the limits of every length of the encoding.
rc::Gen<std::uint32_t> any_ordinal() {
  return rc::gen::oneOf(
      rc::gen::inRange<std::uint32_t>(0, 4),
      rc::gen::element<std::uint32_t>(0x7f, 0x80, 0xff, 0x100, 0xffff, 0x10000, 0xffffff, 0x1000000,
                                      0xfffffffe, 0xffffffff),
      rc::gen::arbitrary<std::uint32_t>());
}

rc::Gen<Ordinals> any_path() { return rc::gen::container<Ordinals>(any_ordinal()); }

RC_GTEST_PROP(OrderKeyTest, ComparesAsTheOrdinalsDo, ()) {
  const auto left = *any_path();
  auto right = *any_path();
  const auto common = *rc::gen::inRange<std::size_t>(0, left.size() + 1);
  if (*rc::gen::arbitrary<bool>()) right.insert(right.begin(), left.begin(), left.begin() + common);
  RC_ASSERT((key_of(left) <=> key_of(right)) == (left <=> right));
  RC_ASSERT((key_of(left) == key_of(right)) == (left == right));
}

RC_GTEST_PROP(OrderKeyTest, ComesBackFromItsBytes, ()) {
  const auto ordinals = *any_path();
  const auto key = key_of(ordinals);
  RC_ASSERT(OrderKey::from_bytes(key.bytes()) == key);
  RC_ASSERT(key.depth() == ordinals.size());
}

RC_GTEST_PROP(OrderKeyTest, OfACallerIsLessThanThatOfItsCallees, ()) {
  const auto caller = key_of(*any_path());
  const auto ordinal = *any_ordinal();
  const auto callee = caller.child(ordinal);
  RC_ASSERT(caller < callee);
  RC_ASSERT(callee.bytes().substr(0, caller.bytes().size()) == caller.bytes());
  if (ordinal > 0) RC_ASSERT(caller.child(ordinal - 1).child(*any_ordinal()) < callee);
}

/// Either they are those of a key, or they are refused; nothing else is read.
RC_GTEST_PROP(OrderKeyTest, TakesNoBytesThatItDidNotWrite, ()) {
  const auto bytes = *rc::gen::container<std::string>(
      rc::gen::oneOf(rc::gen::inRange<char>(0, 3), rc::gen::inRange<char>(-128, -122)));
  try {
    const auto key = OrderKey::from_bytes(bytes);
    RC_ASSERT(key.bytes() == bytes);
    OrderKey again;
    auto text = key.text();  // "body.1.2"; shorter than where texts have gaps
    RC_PRE(key.depth() <= 32u);
    for (auto dot = text.find('.'); dot != std::string::npos; dot = text.find('.', dot + 1)) {
      again.append(static_cast<std::uint32_t>(std::stoul(text.substr(dot + 1))));
    }
    RC_ASSERT(again == key);
  } catch (const InternalError&) {
    RC_SUCCEED("refused");
  }
}

TEST(OrderKeyTest, IsReadable) {
  EXPECT_EQ(OrderKey().text(), "body");
  EXPECT_EQ(OrderKey().child(3).child(0).child(12).text(), "body.3.0.12");
  EXPECT_EQ(OrderKey().child(300).child(4294967295).text(), "body.300.4294967295");
}

TEST(OrderKeyTest, RefusesBytesThatAreNotAKey) {
  const auto refused = [](std::string_view bytes) {
    EXPECT_THROW(static_cast<void>(OrderKey::from_bytes(bytes)), InternalError) << bytes.size();
  };
  refused("\x81");                  // a length without its byte
  refused(std::string("\x80", 1));  // no length
  refused("\x85\x01\x01\x01\x01\x01");
  refused("\x81\x7f");                      // 127 has a shorter writing
  refused(std::string("\x82\x00\x80", 3));  // so has 128
  refused("\x01\x02\x82\xff");
  EXPECT_EQ(OrderKey::from_bytes("\x81\x80"), OrderKey().child(128));
}

TEST(OrderKeyTest, NeedsNoAllocationAtUsualDepths) {
  OrderKey key;
  for (int depth = 0; depth < 15; ++depth) key = key.child(1);
  const auto* const object = reinterpret_cast<const char*>(&key);
  EXPECT_TRUE(key.bytes().data() >= object && key.bytes().data() < object + sizeof key);
}

TEST(OrderKeyTest, CopesWithDeepRecursion) {
  constexpr int kDepth = 10'000;
  std::vector<OrderKey> keys(1);
  for (int depth = 0; depth < kDepth; ++depth) keys.push_back(keys.back().child(depth % 3));
  EXPECT_TRUE(std::is_sorted(keys.begin(), keys.end()));
  EXPECT_EQ(keys.back().depth(), std::size_t{kDepth});
  EXPECT_LT(keys.back(), keys[1].child(2));
  EXPECT_EQ(OrderKey::from_bytes(keys.back().bytes()), keys.back());
  EXPECT_THAT(keys.back().text(), testing::StartsWith("body.0.1.2.0"));
  EXPECT_THAT(keys.back().text(), testing::HasSubstr(".(9968 more)."));
}

}  // namespace
}  // namespace smp::server
