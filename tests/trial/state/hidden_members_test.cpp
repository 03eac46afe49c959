// Who finds which members while they are hidden.
#include "trial/state/hidden_members.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <set>
#include <vector>

namespace smp::partitioning {
namespace hidden_members_test {

/// Two members of its own around a part that is not the user's.
struct Object {
  long before_base = 1;
  char base[12] = {};
  int in_the_same_word = 1;
  long after_base = 1;
};

KeptMembers kept_by(const Object& object, int module) {
  const auto* bytes = reinterpret_cast<const char*>(&object);
  return {{0, module},
          {bytes, sizeof object, offsetof(Object, base), sizeof object.base},
          std::vector<char>(bytes, bytes + sizeof object)};
}

class HiddenMembersTest : public testing::Test {
 protected:
  HiddenMembersTest() {  // pictures are of the first values
    a = Object{2, {'b'}, 2, 2};
    b = Object{3, {'b'}, 3, 3};
  }
  bool a_is_shown() const { return a.before_base == 2; }
  bool b_is_shown() const { return b.before_base == 3; }

  Object a, b;
  std::vector<KeptMembers> members = {kept_by(a, 1), kept_by(b, 2)};
  std::set<ModelModule> everybody = {{0, 0}, {0, 1}, {0, 2}, {1, 0}, {1, 1}};
};

TEST_F(HiddenMembersTest, AreFoundByCallsOfTheirOwnerOnly) {
  {
    HiddenMembers hidden(members, everybody);
    EXPECT_FALSE(a_is_shown());
    hidden.enter({0, 1}, true);
    EXPECT_TRUE(a_is_shown());
    EXPECT_FALSE(b_is_shown());
    hidden.enter({0, 2}, true);
    EXPECT_FALSE(a_is_shown());
    EXPECT_TRUE(b_is_shown());
    hidden.leave(true);
    EXPECT_TRUE(a_is_shown());
    hidden.leave(true);
    EXPECT_FALSE(a_is_shown());
  }
  EXPECT_TRUE(a_is_shown());
  EXPECT_TRUE(b_is_shown());
}

TEST_F(HiddenMembersTest, OfAModuleThatCannotLeaveItsCallerAreTheCallersToo) {
  HiddenMembers hidden(members, everybody);
  hidden.enter({0, 1}, true);
  hidden.enter({0, 2}, false);
  EXPECT_TRUE(a_is_shown());
  EXPECT_TRUE(b_is_shown());
  hidden.leave(false);
  EXPECT_TRUE(b_is_shown());
  hidden.leave(true);
  EXPECT_FALSE(b_is_shown());
}

TEST_F(HiddenMembersTest, AreHiddenFromThoseWhoAreTestedOnly) {
  HiddenMembers hidden(members, {{0, 2}});
  EXPECT_TRUE(a_is_shown());
  hidden.enter({0, 2}, true);
  EXPECT_FALSE(a_is_shown());
  EXPECT_TRUE(b_is_shown());
  hidden.enter({0, 3}, true);
  EXPECT_TRUE(a_is_shown());
}

TEST_F(HiddenMembersTest, OfAnotherModelAreOthers) {
  HiddenMembers hidden(members, everybody);
  hidden.enter({1, 1}, true);
  EXPECT_FALSE(a_is_shown());
}

TEST_F(HiddenMembersTest, OfTheModelItselfAreTheBodys) {
  members[0].owner = {0, 0};
  HiddenMembers hidden(members, everybody);
  EXPECT_TRUE(a_is_shown());
  hidden.enter({0, 2}, true);
  EXPECT_FALSE(a_is_shown());
}

TEST_F(HiddenMembersTest, AreTheUsersWordsOnly) {
  const HiddenMembers hidden(members, everybody);
  EXPECT_EQ(a.before_base, 1);
  EXPECT_EQ(a.base[0], 'b');
  EXPECT_EQ(a.in_the_same_word, 1);
  EXPECT_EQ(a.after_base, 1);
}

TEST_F(HiddenMembersTest, KeepWhatACallWritesMeanwhile) {
  {
    HiddenMembers hidden(members, everybody);
    hidden.enter({0, 1}, true);
    a.after_base = 7;
    hidden.leave(true);
    EXPECT_EQ(a.after_base, 1);
  }
  EXPECT_EQ(a.after_base, 7);
}

}  // namespace hidden_members_test
}  // namespace smp::partitioning
