// Which group of a saved optimizer is which of another one: by names, by options where there are
// none, or not at all.
#include "checkpoint/group_match.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "support/refusal.h"

namespace smp::checkpoints {
namespace group_match_test {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using Groups = std::vector<ParameterGroup>;

ParameterGroup named(std::set<std::string> names, std::size_t nameless = 0) {
  return {std::move(names), nameless, {}};
}
ParameterGroup with(std::map<std::string, double> options, std::set<std::string> names = {}) {
  return {std::move(names), 0, std::move(options)};
}

TEST(GroupMatch, IsOfTheSameNamesInAnyOrder) {
  Groups saved{named({"a", "b"}), named({"c"}), named({"d", "e"})};
  std::vector<std::size_t> order{0, 1, 2};
  do {
    Groups own;
    for (const auto g : order) own.push_back(saved[g]);
    EXPECT_EQ(match_groups(saved, own), order);
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST(GroupMatch, OfGroupsWithoutNamesIsByNumberThenByOrder) {
  const Groups saved{named({}), named({"a"}, 1), named({}, 2), named({}, 1), named({}, 2)};
  const Groups own{named({}, 2), named({}, 1), named({}, 2), named({"a"}, 1), named({})};
  EXPECT_THAT(match_groups(saved, own), ElementsAre(2, 3, 4, 1, 0));
}

TEST(GroupMatch, IsRefusedWithBothLists) {
  const auto said = [](const Groups& saved, const Groups& own) {
    return refusal([&] { static_cast<void>(match_groups(saved, own)); });
  };
  EXPECT_THAT(said({named({"a", "b"}), named({"c"})}, {named({"a"}), named({"b", "c"})}),
              AllOf(HasSubstr("the dict's group 0: a, b\n"), HasSubstr("the dict's group 1: c\n"),
                    HasSubstr("the optimizer's group 0: a\n"),
                    HasSubstr("the optimizer's group 1: b, c\n")));
  EXPECT_THAT(
      said({named({"a", "b"})}, {named({"a"}), named({"b"})}),
      AllOf(HasSubstr("the dict has 1 groups of parameters, the optimizer 2"),
            HasSubstr("the dict's group 0: a, b"), HasSubstr("the optimizer's group 1: b")));
  EXPECT_THAT(said({named({"a"}, 1)}, {named({"a"}, 2)}),
              AllOf(HasSubstr("a, and 1 of no model"), HasSubstr("a, and 2 of no model")));
  EXPECT_THAT(said({named({"a"}), named({})}, {named({"a"}), named({"b"})}),
              AllOf(HasSubstr("the dict's group 1: no parameters"),
                    HasSubstr("the optimizer's group 1: b"), testing::Not(HasSubstr("group 0"))));
  EXPECT_THAT(said({named({"a"}), named({"a", "b"})}, {named({"a"}), named({"b"})}),
              HasSubstr("the dict's group 1: a, b"));
}

/// As files of earlier versions are.
TEST(GroupMatch, WithoutNamesIsByTheOptionsThatLast) {
  const auto decay = [](double value, double lr) {
    return with({{"lr", lr}, {"weight_decay", value}});
  };
  const auto own = [](double value, const char* name) {
    return with({{"lr", 7}, {"weight_decay", value}}, {name});
  };
  EXPECT_THAT(match_groups({decay(.5, 1)}, {own(0, "a")}), ElementsAre(0)) << "there is one";
  EXPECT_THAT(match_groups({decay(.5, 1), decay(.5, 1)}, {own(0, "a"), own(1, "b")}),
              ElementsAre(0, 1))
      << "both say the same";
  EXPECT_THAT(match_groups({decay(.5, 1), decay(0, 2)}, {own(.5, "a"), own(0, "b")}),
              ElementsAre(0, 1));
  EXPECT_THAT(match_groups({decay(.5, 1), decay(0, 2)}, {own(0, "a"), own(.5, "b")}),
              ElementsAre(1, 0));
  EXPECT_THAT(match_groups({decay(.5, 1), decay(0, 2), decay(.5, 1)},
                           {own(.5, "a"), own(.5, "b"), own(0, "c")}),
              ElementsAre(0, 2, 1));
  for (const auto& [saved, mine] : std::vector<std::pair<Groups, Groups>>{
           {{decay(.5, 1), decay(.5, 2)}, {own(.5, "a"), own(.5, "b")}},    // who has which lr?
           {{decay(.5, 1), decay(0, 1)}, {own(.1, "a"), own(.2, "b")}},     // both are new
           {{decay(.5, 1), decay(0, 1)}, {own(.5, "a"), own(.5, "b")}}}) {  // one of them is
    EXPECT_THAT(
        refusal([&] { static_cast<void>(match_groups(saved, mine)); }),
        AllOf(HasSubstr("do not tell which is which"), HasSubstr("weight_decay 0.5"),
              HasSubstr("the optimizer's group 1: b; lr 7"), HasSubstr("param_groups.0.params.")));
  }
}

}  // namespace group_match_test
}  // namespace smp::checkpoints
