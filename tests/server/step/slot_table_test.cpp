// An id means one object, as long as it is there, and nothing afterwards.
#include "server/step/slot_table.h"

#include <gtest/gtest.h>

#include <string>

namespace smp::server {
namespace {

using Table = SlotTable<std::string, RecordId>;

TEST(SlotTable, FindsAndTakes) {
  Table table;
  const auto a = table.add("a");
  const auto b = table.add("b");
  ASSERT_NE(table.find(a), nullptr);
  EXPECT_EQ(*table.find(a), "a");
  EXPECT_EQ(table.take(b), "b");
  EXPECT_EQ(table.find(b), nullptr);
  EXPECT_EQ(table.take(b), std::nullopt);
  EXPECT_EQ(table.size(), 1u);
}

TEST(SlotTable, AnOldIdDoesNotFindTheNextObjectOfItsSlot) {
  Table table;
  const auto old = table.add("old");
  table.take(old);
  const auto next = table.add("next");
  EXPECT_EQ(next.slot, old.slot) << "slots are used again";
  EXPECT_EQ(table.find(old), nullptr);
  EXPECT_EQ(*table.find(next), "next");
}

TEST(SlotTable, NoIdFindsNothing) {
  Table table;
  EXPECT_FALSE(RecordId{});
  EXPECT_EQ(table.find({}), nullptr);
  EXPECT_EQ(table.find({5, 1}), nullptr);
}

TEST(SlotTable, GivesEverythingAway) {
  Table table;
  const auto a = table.add("a");
  static_cast<void>(table.add("b"));
  EXPECT_EQ(table.take_all(), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(table.size(), 0u);
  EXPECT_EQ(table.find(a), nullptr);
}

}  // namespace
}  // namespace smp::server
