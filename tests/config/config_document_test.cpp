// The struct, the table of keys and the document say the same of every setting.
#include <gmock/gmock.h>

#include <cstdlib>
#include <regex>
#include <sstream>

#include "base/check.h"
#include "base/files.h"
#include "config/config_keys.h"
#include "config/needless_keys.h"
#include "smp/detail/fields.h"
#include "support/source_file.h"

namespace smp::base {
namespace {

using testing::HasSubstr;

struct DocumentedField {
  std::string name, comment;
};

/// Those of smp::Config, as its header declares them.
std::vector<DocumentedField> documented_fields() {
  static const std::regex kComment(" *///(.*)"), kField("  [a-z].* ([a-z0-9_]+) = .*;");
  std::vector<DocumentedField> fields;
  std::string comment;
  std::istringstream header(read_file(support::source_file("include/smp/config.h")));
  for (std::string line; std::getline(header, line);) {
    std::smatch match;
    if (std::regex_match(line, match, kComment)) {
      comment += match[1];
      continue;
    }
    if (std::regex_match(line, match, kField)) fields.push_back({match[1], comment});
    comment.clear();
  }
  return fields;
}

/// Unit, other name and choices of `key`, as its field's comment has them.
std::vector<std::string> words_of(const ConfigKey& key) {
  static const std::regex kQuoted("\"[^\"]+\"");
  const auto& text = key.expected;
  std::vector<std::string> found;
  if (!key.unit.empty()) found.push_back(key.unit);
  if (!key.alias.empty()) found.push_back("`" + key.alias + "`");
  for (const auto& item : key.switches) found.push_back("`" + item.first + "`");
  for (std::sregex_iterator at(text.begin(), text.end(), kQuoted), end; at != end; ++at) {
    found.push_back(at->str());
  }
  return found;
}

// A key has its field's name, so as many keys as fields are one for each.
TEST(ConfigDocument, EveryFieldHasAKeyInTheOrderOfTheHeader) {
  EXPECT_EQ(config_keys().size(), (detail::count_fields<Config, 128>()));
  std::vector<std::string> names, keys;
  for (const auto& field : documented_fields()) names.push_back(field.name);
  for (const auto& key : config_keys()) keys.push_back(key.name);
  EXPECT_EQ(keys, names);
}

TEST(ConfigDocument, CommentsOfTheHeaderNameUnitsChoicesAndOtherNames) {
  for (const auto& [name, comment] : documented_fields()) {
    const ConfigKey* const key = find_config_key(name);
    ASSERT_NE(key, nullptr) << name;
    EXPECT_FALSE(comment.empty()) << name;
    for (const auto& word : words_of(*key)) EXPECT_THAT(comment, HasSubstr(word)) << name;
  }
}

constexpr const char* kBegin =
    "<!-- keys; SMP_REWRITE_DOCS=1 ./smp test -R config_document writes these tables -->\n\n";
constexpr const char* kEnd = "\n<!-- end of keys -->\n";

std::string tables() {
  std::ostringstream page;
  page << "| key | value | default | meaning |\n| --- | --- | --- | --- |\n";
  for (const ConfigKey& key : config_keys()) {
    std::string names = "`" + key.name + "`";
    if (!key.alias.empty()) names += ", `" + key.alias + "`";
    for (const auto& item : key.switches) names += ", `" + item.first + "`";
    page << "| " << names << " | " << key.expected << " | " << key.default_text << " | "
         << key.meaning << " |\n";
  }
  page << "\n## Known, not yet available\n\n| key | only accepted value | comes with |\n| --- | "
          "--- | --- |\n";
  for (const FutureKey& key : future_keys()) {
    page << "| `" << key.name << "` | "
         << (key.default_value.is_null() ? "none" : key.default_value.dump()) << " | "
         << key.feature << " |\n";
  }
  page
      << "\n## Accepted, and needless\n\n| key | values | why nothing changes |\n| --- | --- | --- "
         "|\n";
  for (const NeedlessKey& key : needless_keys()) {
    page << "| `" << key.name << "` | " << key.expected << " | " << key.reason << " |\n";
  }
  return page.str();
}

TEST(ConfigDocument, ListsTheKeysOfTheCode) {
  const std::string path = support::source_file("docs/configuration.md");
  const std::string page = read_file(path);
  const auto begin = page.find(kBegin), end = page.find(kEnd);
  ASSERT_TRUE(begin != std::string::npos && end != std::string::npos && begin < end)
      << path << " lacks the lines around its tables:\n"
      << kBegin << kEnd;
  const std::string right = page.substr(0, begin) + kBegin + tables() + page.substr(end);
  if (std::getenv("SMP_REWRITE_DOCS") != nullptr) return write_file(path, right);
  EXPECT_EQ(page, right) << "SMP_REWRITE_DOCS=1 in the environment of this test rewrites " << path;
}

}  // namespace
}  // namespace smp::base
