// JSON with comments: positions, duplicates, and members of the wrong kind.
#include "base/json.h"

#include <gmock/gmock.h>

#include "support/refusal.h"

namespace smp::base {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(JsonText, MayHaveCommentsAndKeepsTheOrderOfKeys) {
  EXPECT_EQ(parse_json("{/* first */ \"b\": 1, // second\n \"a\": 2}", "f").dump(),
            R"({"b":1,"a":2})");
}

TEST(JsonText, NamesFileLineAndColumnOfAMistake) {
  EXPECT_THAT(refusal([] { parse_json("{\n  \"a\" 1}", "f.json"); }),
              AllOf(HasSubstr("f.json: line 2, column 7"), HasSubstr("expected ':'")));
  EXPECT_THAT(refusal([] { parse_json("", "f.json"); }), HasSubstr("f.json: line 1, column 1"));
}

TEST(JsonText, MustNotHoldAKeyTwiceInOneObject) {
  EXPECT_THAT(refusal([] { parse_json(R"({"a": {"b": 1, "b": 2}})", "f.json"); }),
              HasSubstr("f.json: the key \"b\" is given twice"));
  EXPECT_EQ(refusal([] { parse_json(R"({"a": {"b": 1}, "b": [{"b": 2}, {"b": 3}]})", "f"); }),
            "accepted");
}

TEST(JsonText, FindsKeysByLineAndColumn) {
  const std::string text = "{\"a\": \"b\",\n  \"b\" : 1}";
  EXPECT_EQ(json_position(text, "a"), "1:2");
  EXPECT_EQ(json_position(text, "b"), "2:3");
  EXPECT_EQ(json_position(text, "c"), "");
}

TEST(JsonText, NamesTheMemberThatIsMissingOrOfAnotherType) {
  const Json object = parse_json(R"({"a": 1})", "f.json");
  EXPECT_EQ(json_member<int>(object, "a", "f.json"), 1);
  EXPECT_THAT(refusal([&] { json_member<int>(object, "b", "f.json"); }),
              HasSubstr("f.json: \"b\" is missing"));
  EXPECT_THAT(refusal([&] { json_member<std::string>(object, "a", "f.json"); }),
              HasSubstr("\"a\" has an unexpected type: 1"));
}

}  // namespace
}  // namespace smp::base
