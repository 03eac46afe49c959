// The registry of remotely callable methods: look-up, collisions, and its hash.
#include "module/registry.h"

#include <gtest/gtest.h>

#include "smp/error.h"

namespace smp {
namespace {

Packet nothing(RoutedBase&, Packet&) { return {}; }

struct One {};
struct Other {};

TEST(Registry, FindsWhatWasRegistered) {
  const auto& entry = register_call({1001, "void One::forward()", &nothing, &typeid(One)});
  EXPECT_EQ(find_call(1001), &entry);
  EXPECT_STREQ(find_call(1001)->signature, "void One::forward()");
  EXPECT_EQ(find_call(1002), nullptr);
}

TEST(Registry, ChangesItsHashWithEveryCall) {
  const auto before = call_registry_hash();
  register_call({2001, "void One::first()", &nothing, &typeid(One)});
  const auto between = call_registry_hash();
  register_call({2002, "void One::second()", nullptr, &typeid(One)});
  EXPECT_NE(before, between);
  EXPECT_NE(between, call_registry_hash());
}

TEST(Registry, AcceptsTheSameCallTwice) {
  const CallEntry entry{3001, "void One::forward()", &nothing, &typeid(One)};
  register_call(entry);
  const auto hash = call_registry_hash();
  register_call(entry);
  EXPECT_EQ(call_registry_hash(), hash);
}

TEST(Registry, NamesTwoTypesWithOneKey) {
  EXPECT_NO_THROW(module::require_distinct_calls());
  register_call({4001, "void {anonymous}::Block::forward()", &nothing, &typeid(One)});
  register_call({4001, "void {anonymous}::Block::forward()", &nothing, &typeid(Other)});
  try {
    module::require_distinct_calls();
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("Block::forward"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("Rename"), std::string::npos);
  }
}

}  // namespace
}  // namespace smp
