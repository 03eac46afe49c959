// YAML has the values that OmegaConf gives it: tests/data/nemo/*.json are its answers.
#include "nemo/yaml_values.h"

#include <gmock/gmock.h>

#include <cmath>
#include <string>

#include "base/files.h"
#include "nemo/references.h"
#include "smp/error.h"
#include "support/refusal.h"

namespace smp::nemo {
namespace yaml_values_test {

using base::Json;
using testing::AllOf;
using testing::HasSubstr;

std::string data(const std::string& file) { return std::string(SMP_TEST_DATA) + "/nemo/" + file; }

/// Names a value's type as Python does.
std::string type_of(const Json& value) {
  if (value.is_null()) return "NoneType";
  if (value.is_boolean()) return "bool";
  if (value.is_number_integer()) return "int";
  return value.is_number() ? "float" : "str";
}

TEST(YamlValues, ScalarsAreThoseOfOmegaConf) {
  const auto table = base::read_json(data("scalars.json"));
  ASSERT_GT(table.size(), 100u);
  for (const auto& row : table) {
    const auto text = row[0].get<std::string>();
    SCOPED_TRACE(text);
    const auto value = yaml_scalar(text, "here");
    const auto& [type, wanted] = *row[1].items().begin();
    ASSERT_EQ(type_of(value), type);
    if (type != "float") {
      EXPECT_EQ(value, wanted);
    } else if (wanted.is_string()) {
      const auto number = value.get<double>();
      EXPECT_EQ(std::isnan(number), wanted == "nan");
      EXPECT_EQ(number > 0, wanted == "inf");
    } else {
      EXPECT_EQ(value.get<double>(), wanted.get<double>());
    }
  }
}

TEST(YamlValues, WholeConfigurationsAreThoseOfOmegaConf) {
  for (const std::string name : {"llama", "megatron"}) {
    auto tree = read_yaml(base::read_file(data(name + ".yaml")), name);
    resolve_references(tree);
    if (name == "megatron") {
      EXPECT_EQ(tree.at("rank"), "${oc.env:RANK}") << "what nobody here knows stays";
      tree.erase("rank");
    }
    const auto wanted = base::read_json(data(name + ".json"));
    const auto difference = nlohmann::json::diff(nlohmann::json::parse(tree.dump()),
                                                 nlohmann::json::parse(wanted.dump()));
    EXPECT_TRUE(difference.empty()) << difference;
  }
}

Json yaml(const std::string& text) { return read_yaml(text, "here"); }

TEST(YamlValues, QuotesAndTagsDecide) {
  EXPECT_EQ(yaml("[\"yes\", '1', !!str 5, !!int '5', !!float 5, !!bool 'on', !!null '']"),
            Json::parse(R"(["yes", "1", "5", 5, 5.0, true, null])"));
  EXPECT_EQ(type_of(yaml("[!!float 5]")[0]), "float");
  EXPECT_THAT(refusal<UsageError>([] { yaml("a: !!int x"); }), HasSubstr("here:1:4: x is no int"));
  EXPECT_THAT(refusal<UsageError>([] { yaml("a: !own x"); }),
              HasSubstr("the tag !own is not known"));
}

TEST(YamlValues, MapsMergeAsInPython) {
  EXPECT_EQ(yaml("a: &a {x: 1, y: 2}\nb: &b {y: 3, z: 4}\nc: {<<: [*a, *b], x: 9}\nd: {'<<': 1}"),
            Json::parse(R"({"a": {"x": 1, "y": 2}, "b": {"y": 3, "z": 4},
                            "c": {"x": 9, "y": 2, "z": 4}, "d": {"<<": 1}})"));
  EXPECT_THAT(refusal<UsageError>([] { yaml("{<<: 5}"); }), HasSubstr("<< takes maps, not 5"));
}

TEST(YamlValues, WhatIsRefusedIsNamedWithItsPlace) {
  EXPECT_THAT(refusal<UsageError>([] { yaml("a: 1\nb: 2\na: 3"); }),
              HasSubstr("here:3:1: \"a\" is given twice"));
  EXPECT_THAT(refusal<UsageError>([] { yaml("a: [1, 2\nb: 3"); }), HasSubstr("here:2:"));
  EXPECT_THAT(refusal<UsageError>([] { yaml("a: 1\n---\nb: 2"); }), HasSubstr("found 2"));
  EXPECT_THAT(refusal<UsageError>([] { yaml("a: 123456789012345678901"); }),
              HasSubstr("no integer of 64 bits"));
  EXPECT_THAT(refusal<UsageError>([] { yaml("? [1, 2]\n: 3"); }), HasSubstr("a key is a text"));
  EXPECT_THAT(refusal<UsageError>([] { yaml(""); }), HasSubstr("expected one YAML document"));
  std::string deep = "a", wide = "a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n";
  for (int i = 0; i < 100; ++i) deep = "[" + deep + "]";
  EXPECT_THAT(refusal<UsageError>([&] { yaml(deep); }), HasSubstr("more than 64 levels"));
  for (char name = 'b'; name < 'h'; ++name) {
    const std::string before = std::string("*") + static_cast<char>(name - 1);
    wide += std::string(1, name) + ": &" + name + " [";
    for (int i = 0; i < 10; ++i) wide += (i > 0 ? ", " : "") + before;
    wide += "]\n";
  }
  EXPECT_THAT(refusal<UsageError>([&] { yaml(wide); }), HasSubstr("more than 100000 values"));
}

Json resolved(const std::string& text) {
  auto tree = yaml(text);
  resolve_references(tree);
  return tree;
}

TEST(References, ReachValuesFromTheRootAndFromWhereTheyStand) {
  EXPECT_EQ(
      resolved("a: {b: 3, c: '${.b}', d: {e: '${..b}', f: '${a.c}'}}\nname: x${a.b}y${a.d.e}"),
      Json::parse(R"({"a": {"b": 3, "c": 3, "d": {"e": 3, "f": 3}}, "name": "x3y3"})"));
  EXPECT_EQ(resolved("key: b\nb: [1]\nc: '${${key}}'\nd: '${multiply:${e},2}'\ne: 1.5"),
            Json::parse(R"({"key": "b", "b": [1], "c": [1], "d": 3.0, "e": 1.5})"));
}

TEST(References, OfNothingStay) {
  const std::string text =
      "a: '${b}'\nb: '${a}'\nc: '${x.y}'\nd: '${oc.env:HOME}'\ne: '${multiply:a,2}'\nf: '${'";
  EXPECT_EQ(resolved(text), yaml(text));
}

}  // namespace yaml_values_test
}  // namespace smp::nemo
