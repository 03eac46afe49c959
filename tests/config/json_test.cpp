// JSON with comments: positions, duplicates, and members of the wrong kind.
#include "config/json.h"

#include <gmock/gmock.h>

#include "base/clock.h"
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

TEST(JsonText, HoldsNoByteZero) {
  using namespace std::string_literals;
  EXPECT_THAT(refusal<UsageError>([] { parse_json("{\"a\": 1}\0\0"s, "plan.json"); }),
              HasSubstr("plan.json: byte 9 is 0, which is no JSON"));
  EXPECT_EQ(find_json("{\"a\": 1}\0{\"b\": 2}"s), std::nullopt);
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
              HasSubstr("\"a\" is 1, expected a text"));
}

TEST(JsonText, MayHoldTheEmptyKeyOnce) {
  EXPECT_EQ(refusal([] { parse_json(R"({"": 1})", "f"); }), "accepted");
  EXPECT_THAT(refusal([] { parse_json(R"({"": 1, "": 2})", "f"); }), HasSubstr("given twice"));
}

TEST(JsonText, IsNotNestedWithoutEnd) {
  const auto nested = [](std::size_t depth) {
    return std::string(depth, '[') + std::string(depth, ']');
  };
  EXPECT_EQ(refusal([&] { parse_json(nested(kMostJsonDepth), "f"); }), "accepted");
  EXPECT_THAT(refusal([&] { parse_json(nested(kMostJsonDepth + 1), "f.json"); }),
              HasSubstr("f.json: brackets are nested more than 64 deep"));
  EXPECT_THAT(refusal([&] { parse_json(std::string(1'000'000, '['), "f"); }), HasSubstr("nested"));
  EXPECT_THAT(refusal([&] {
                std::string objects;
                for (int i = 0; i < 100'000; ++i) objects += "{\"a\":";
                parse_json(objects, "f");
              }),
              HasSubstr("nested"));
}

TEST(JsonText, HoldsNoNumberBeyondADouble) {
  EXPECT_THAT(refusal([] { parse_json("[1, 1e999]", "f.json"); }),
              HasSubstr("f.json: the number 1e999 is too large"));
  EXPECT_EQ(parse_json("1e308", "f"), 1e308);
}

TEST(JsonText, IsReadInTimeThatGrowsWithItsLength) {
  // A hundred thousand keys took 13 s where each was looked up among those before it.
  std::string text = "{";
  for (int i = 0; i < 100'000; ++i) text += concat(i == 0 ? "" : ",", "\"key", i, "\":", i);
  const SteadyClock clock;
  const auto start = clock.now();
  EXPECT_EQ(parse_json(text + "}", "f").size(), 100'000);
  EXPECT_LT(clock.now() - start, 3'000'000'000);
}

TEST(JsonText, IsQuotedInPartsOnly) {
  const std::string long_text(10'000, 'x');
  EXPECT_LT(refusal([&] { parse_json("[\"" + long_text, "f"); }).size(), 400);
  EXPECT_LT(refusal([&] { parse_json("{" + long_text + "}", "f"); }).size(), 400);
  EXPECT_LT(refusal([&] { json_member<int>({{"a", long_text}}, "a", "f"); }).size(), 400);
}

TEST(JsonLine, IsNothingIfItIsTorn) {
  EXPECT_EQ(find_json(R"({"a": 1})"), Json({{"a", 1}}));
  for (const char* torn : {"", "{\"a\": ", "{\"a\": 1}}", "[1e999]"}) {
    EXPECT_FALSE(find_json(torn)) << torn;
  }
}

TEST(JsonValue, IsReadWithoutLossOrNotAtAll) {
  EXPECT_EQ(json_as<int>(2147483647), 2147483647);
  EXPECT_FALSE(json_as<int>(2147483648));
  EXPECT_FALSE(json_as<int>(4294967297));
  EXPECT_FALSE(json_as<std::uint64_t>(-1));
  EXPECT_FALSE(json_as<int>(1.9));
  EXPECT_FALSE(json_as<int>(true));
  EXPECT_FALSE(json_as<bool>(1));
  EXPECT_EQ(json_as<double>(1), 1.0);
  EXPECT_FALSE(json_as<std::vector<int>>(Json{1, 2.5}));
  EXPECT_EQ(json_as<std::vector<int>>(Json{1, 2}), (std::vector{1, 2}));
}

TEST(JsonValue, IsNamedWithWhatIsExpectedOfIt) {
  EXPECT_THAT(
      refusal([] {
        json_member<int>({{"a", 1.9}}, "a", "f.json");
      }),
      HasSubstr("f.json: \"a\" is 1.9, expected an integer from -2147483648 to 2147483647"));
  EXPECT_THAT(refusal([] {
                json_element<std::string>(Json{1, 2}, 1, "f.json");
              }),
              HasSubstr("f.json: element 1 of [1,2] is 2, expected a text"));
  EXPECT_THAT(refusal([] {
                json_element<int>(Json{1, 2}, 2, "f.json");
              }),
              HasSubstr("f.json: [1,2] has no element 2"));
}

TEST(JsonText, ReplacesWhatIsNoUtf8) { EXPECT_EQ(json_text("a\xff"), "\"a\xEF\xBF\xBD\""); }

}  // namespace
}  // namespace smp::base
