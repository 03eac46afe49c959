// nemo/yaml_values.cpp: yaml-cpp finds nodes and texts. What a text means is decided here: its own
// conversions differ from Python's and depend on the locale.
#include "nemo/yaml_values.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <limits>
#include <optional>
#include <regex>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/text/excerpt.h"

namespace smp::nemo {
namespace {

using base::Json;

constexpr std::size_t kMostValues = 100'000;  // aliases of aliases make many out of few
constexpr std::size_t kLongestNumber = 64;    // characters; longer ones are texts to us
constexpr const char* kQuoted = "!";          // how yaml-cpp tags what has quotes
constexpr const char* kTag = "tag:yaml.org,2002:";

bool is_bool(const std::string& text, bool& value) {
  static const std::vector<std::string> yes = {"yes",  "Yes", "YES", "true", "True",
                                               "TRUE", "on",  "On",  "ON"};
  static const std::vector<std::string> no = {"no",    "No",  "NO",  "false", "False",
                                              "FALSE", "off", "Off", "OFF"};
  value = std::find(yes.begin(), yes.end(), text) != yes.end();
  return value || std::find(no.begin(), no.end(), text) != no.end();
}

bool is_integer(const std::string& text) {
  static const std::regex form(
      "[-+]?0b[01_]+|[-+]?0[0-7_]+|[-+]?(0|[1-9][0-9_]*)|[-+]?0x[0-9a-fA-F_]+|"
      "[-+]?[1-9][0-9_]*(:[0-5]?[0-9])+");
  return text.size() <= kLongestNumber && std::regex_match(text, form);
}

bool is_real(const std::string& text) {
  // PyYAML's, which want a sign in the exponent, and OmegaConf's.
  static const std::regex form(
      "[-+]?[0-9][0-9_]*\\.[0-9_]*([eE][-+][0-9]+)?|\\.[0-9][0-9_]*([eE][-+][0-9]+)?|"
      "[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+\\.[0-9_]*|[-+]?\\.(inf|Inf|INF)|\\.(nan|NaN|NAN)|"
      "[-+]?[0-9]+(_[0-9]+)*\\.[0-9_]*([eE][-+]?[0-9]+)?|[-+]?[0-9]+(_[0-9]+)*[eE][-+]?[0-9]+|"
      "\\.[0-9]+(_[0-9]+)*([eE][-+][0-9]+)?");
  return text.size() <= kLongestNumber && std::regex_match(text, form);
}

/// A number's text, without its sign and the underlines in it.
struct Digits {
  explicit Digits(std::string text) {
    std::erase(text, '_');
    negative = text.starts_with('-');
    digits = text.substr(negative || text.starts_with('+') ? 1 : 0);
  }
  bool negative;
  std::string digits;
};

/// Returns what "1:30:00" counts in units of its last part; the last one is read by `last`.
template <class Number, class Last>
Number sexagesimal(std::string_view text, Last last) {
  Number sum{};
  for (auto colon = text.find(':'); colon != std::string_view::npos; colon = text.find(':')) {
    sum = (sum + static_cast<Number>(last(text.substr(0, colon)))) * 60;
    text.remove_prefix(colon + 1);
  }
  return sum + static_cast<Number>(last(text));
}

Json integer(const std::string& text, const std::string& name) {
  const Digits number(text);
  std::string_view digits = number.digits;
  const auto read = [&](std::string_view part, int radix = 10) {
    std::int64_t value = 0;
    const auto end = part.data() + part.size();
    const auto result = std::from_chars(part.data(), end, value, radix);
    SMP_REQUIRE(part.empty() || (result.ec == std::errc() && result.ptr == end), name, ": ",
                base::excerpt(text), " is no integer of 64 bits");
    return value;
  };
  std::int64_t value = 0;
  if (digits.starts_with("0b")) {
    value = read(digits.substr(2), 2);
  } else if (digits.starts_with("0x")) {
    value = read(digits.substr(2), 16);
  } else if (digits.starts_with('0')) {
    value = read(digits, 8);
  } else {
    value = sexagesimal<std::int64_t>(digits, read);
  }
  return number.negative ? -value : value;
}

Json real(const std::string& text) {
  const Digits number(text);
  const auto sign = number.negative ? -1.0 : 1.0;
  const std::string_view digits = number.digits;
  if (digits.size() == 4 && digits[0] == '.' && (digits[1] | 0x20) == 'i') {
    return sign * std::numeric_limits<double>::infinity();
  }
  if (digits.size() == 4 && (digits[1] | 0x20) == 'n') {
    return std::numeric_limits<double>::quiet_NaN();
  }
  return sign * sexagesimal<double>(digits, [](std::string_view part) {
           double value = 0;
           const auto read = std::from_chars(part.data(), part.data() + part.size(), value);
           const bool large = read.ec != std::errc() && part.find('-') == std::string_view::npos;
           return large ? std::numeric_limits<double>::infinity() : value;
         });
}

/// Makes values of nodes.
class Reader {
 public:
  explicit Reader(const std::string& name) : name_(name) {}

  Json value(const YAML::Node& node, std::size_t depth = 0) {
    SMP_REQUIRE(depth <= base::kMostJsonDepth, place(node), ": more than ", base::kMostJsonDepth,
                " levels, or an alias of itself");
    SMP_REQUIRE(++values_ <= kMostValues, place(node), ": more than ", kMostValues,
                " values, with those that aliases stand for");
    switch (node.Type()) {
      case YAML::NodeType::Scalar:
        return scalar(node);
      case YAML::NodeType::Sequence:
        return list(node, depth);
      case YAML::NodeType::Map:
        return map(node, depth);
      default:
        return nullptr;
    }
  }

 private:
  std::string place(const YAML::Node& node) const {
    const auto mark = node.Mark();
    if (mark.is_null()) return name_;
    return base::concat(name_, ":", mark.line + 1, ":", mark.column + 1);
  }

  Json scalar(const YAML::Node& node) const {
    std::string_view tag = node.Tag();
    const auto& text = node.Scalar();
    if (tag == kQuoted) return text;
    if (tag.empty() || tag == "?") return yaml_scalar(text, place(node));
    SMP_REQUIRE(tag.starts_with(kTag), place(node), ": the tag ", base::excerpt(node.Tag()),
                " is not known; take it away");
    tag.remove_prefix(std::string_view(kTag).size());
    if (tag == "str") return text;
    auto meant = yaml_scalar(text, place(node));
    if (tag == "float" && meant.is_number()) return meant.get<double>();
    const bool fits = (tag == "int" && meant.is_number_integer()) ||
                      (tag == "bool" && meant.is_boolean()) || (tag == "null" && meant.is_null());
    SMP_REQUIRE(fits, place(node), ": ", base::excerpt(text), " is no ", std::string(tag));
    return meant;
  }

  Json list(const YAML::Node& node, std::size_t depth) {
    Json values = Json::array();
    for (const auto& element : node) values.push_back(value(element, depth + 1));
    return values;
  }

  Json map(const YAML::Node& node, std::size_t depth) {
    Json own = Json::object();
    std::vector<Json> merged;
    for (const auto& entry : node) {
      const YAML::Node &key = entry.first, &of_key = entry.second;
      SMP_REQUIRE(key.IsScalar(), place(key), ": a key is a text or a number");
      const auto& text = key.Scalar();
      if (text == "<<" && key.Tag() != kQuoted) {
        merge(of_key, depth, merged);
        continue;
      }
      SMP_REQUIRE(!own.contains(text), place(key), ": \"", base::excerpt(text),
                  "\" is given twice in one map");
      own[text] = value(of_key, depth + 1);
    }
    for (const auto& other : merged) {
      for (const auto& [key, of_key] : other.items()) {
        if (!own.contains(key)) own[key] = of_key;
      }
    }
    return own;
  }

  /// What stands first wins.
  void merge(const YAML::Node& node, std::size_t depth, std::vector<Json>& merged) {
    auto found = value(node, depth + 1);
    if (!found.is_array()) found = Json::array({std::move(found)});
    for (auto& one : found) {
      SMP_REQUIRE(one.is_object(), place(node), ": << takes maps, not ",
                  base::excerpt(base::json_text(one)));
      merged.push_back(std::move(one));
    }
  }

  const std::string& name_;
  std::size_t values_ = 0;
};

}  // namespace

Json yaml_scalar(const std::string& text, const std::string& name) {
  if (text.empty() || text == "~" || text == "null" || text == "Null" || text == "NULL") {
    return nullptr;
  }
  bool truth = false;
  if (is_bool(text, truth)) return truth;
  if (is_real(text)) return real(text);
  if (is_integer(text)) return integer(text, name);
  return text;
}

Json read_yaml(const std::string& text, const std::string& name) {
  std::vector<YAML::Node> documents;
  try {
    documents = YAML::LoadAll(text);
  } catch (const YAML::Exception& error) {
    throw UsageError(base::concat(name, ":", error.mark.line + 1, ":", error.mark.column + 1,
                                  ": no YAML: ", error.msg));
  }
  SMP_REQUIRE(documents.size() == 1, name, ": expected one YAML document, found ",
              documents.size());
  return Reader(name).value(documents[0]);
}

}  // namespace smp::nemo
