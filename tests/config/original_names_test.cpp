// The table of the original's calls and settings: complete, true of what there is here, and as the
// document has it.
#include "config/original_names.h"

#include <gmock/gmock.h>

#include <cstdlib>
#include <filesystem>
#include <regex>
#include <set>
#include <sstream>

#include "base/check.h"
#include "base/files.h"
#include "config/config.h"
#include "config/config_keys.h"
#include "config/needless_keys.h"
#include "support/refusal.h"
#include "support/source_file.h"

namespace smp::base {
namespace original_names_test {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

std::multiset<std::string> listed() {
  std::multiset<std::string> names;
  std::istringstream list(read_file(support::source_file("tests/data/original_names.txt")));
  for (std::string line; std::getline(list, line);) {
    if (!line.starts_with('#')) names.insert(line);
  }
  return names;
}

TEST(OriginalNames, AreThoseOfItsDocuments) {
  std::multiset<std::string> rows;
  for (const auto& section : original_names()) {
    for (const auto& name : section.names) rows.emplace(name.name);
  }
  for (const auto& key : original_keys()) rows.insert(concat("key ", key.name));
  EXPECT_EQ(rows, listed());
}

/// "Suite.Name" of all tests.
std::set<std::string> tests_there() {
  static const std::regex kTest("TEST(_F|_P)?\\(\\s*(\\w+),\\s*(\\w+)\\s*\\)");
  std::set<std::string> tests;
  const std::filesystem::path folder = support::source_file("tests");
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.path().extension() != ".cpp") continue;
    const auto text = read_file(entry.path().string());
    for (std::sregex_iterator at(text.begin(), text.end(), kTest), end; at != end; ++at) {
      tests.insert(concat((*at)[2].str(), '.', (*at)[3].str()));
    }
  }
  return tests;
}

TEST(OriginalNames, EachHasATestAndAnAnswer) {
  const auto tests = tests_there();
  ASSERT_GT(tests.size(), 1000U);
  for (const auto& section : original_names()) {
    for (const auto& name : section.names) {
      EXPECT_TRUE(tests.count(std::string(name.test)) > 0)
          << name.name << ": there is no test " << name.test;
      EXPECT_FALSE(name.here.empty() && name.note.empty()) << name.name;
    }
  }
  for (const auto& key : original_keys()) {
    EXPECT_TRUE(tests.count(std::string(key.test)) > 0)
        << "key " << key.name << ": there is no test " << key.test;
  }
}

/// What `key` is here.
enum class Fate { kKey, kNeedless, kLater, kUnknown };
Fate fate_of(const std::string& key) {
  if (find_config_key(key) != nullptr || find_config_switch(key)) return Fate::kKey;
  if (find_needless_key(key) != nullptr) return Fate::kNeedless;
  return find_future_key(key) != nullptr ? Fate::kLater : Fate::kUnknown;
}

/// A dict with the original's defaults asks for nothing that is not here.
TEST(OriginalKeys, AreKnownWithTheirDefaults) {
  for (const auto& [name, default_value, note, test] : original_keys()) {
    EXPECT_NE(fate_of(std::string(name)), Fate::kUnknown) << name;
    if (default_value.empty()) continue;
    ConfigInput input;
    input.world_size = 1;
    input.environment["SM_HP_MP_PARAMETERS"] = concat("{\"", name, "\": ", default_value, "}");
    EXPECT_NO_THROW(resolve_config(input)) << name;
  }
}

/// Nothing that the code knows as the original's is missing in the table.
TEST(OriginalKeys, AreAllThatTheSettingsKnow) {
  std::set<std::string> rows;
  for (const auto& key : original_keys()) rows.emplace(key.name);
  for (const auto& key : future_keys()) EXPECT_EQ(rows.count(key.name), 1U) << key.name;
  for (const auto& key : needless_keys()) EXPECT_EQ(rows.count(key.name), 1U) << key.name;
}

TEST(OriginalNames, VariablesOfTheOriginalAreNoMistake) {
  for (const auto& section : original_names()) {
    for (const auto& name : section.names) {
      if (!name.name.starts_with("SM") || name.name.find('.') != std::string_view::npos) continue;
      if (name.name == "SM_HP_MP_PARAMETERS") continue;
      ConfigInput input;
      input.world_size = 2;
      input.environment[std::string(name.name)] = "1";
      EXPECT_NO_THROW(resolve_config(input)) << name.name;
    }
  }
}

TEST(OriginalNames, ArgumentsThatAreGivenAsSettingsAreExplained) {
  ConfigInput input;
  input.world_size = 2;
  input.environment["SM_HP_MP_PARAMETERS"] = R"({"backward_passes_per_step": 2})";
  EXPECT_THAT(refusal<UsageError>([&] { resolve_config(input); }),
              AllOf(HasSubstr("backward_passes_per_step"),
                    HasSubstr("an argument of DistributedModel in the original"),
                    HasSubstr("model.no_sync()")));
  EXPECT_EQ(instead_of_argument("microbatchs"), "");
}

// ---- settings ----------------------------------------------------------------------------------

ResolvedConfig resolved(const std::string& parameters) {
  ConfigInput input;
  input.world_size = 4;
  input.environment["SM_HP_MP_PARAMETERS"] = parameters;
  return resolve_config(input);
}

/// The original's launcher refuses them.
TEST(SettingsOfRows, PlacementMayBeAnyPermutation) {
  for (const char* order : {"DPT", "DTP", "PDT", "PTD", "TDP", "TPD", "cluster", "spread"}) {
    const auto config = resolved(concat(R"({"placement_strategy": ")", order, R"("})"));
    EXPECT_EQ(config.values().placement_strategy, order);
  }
  EXPECT_THROW(resolved(R"({"placement_strategy": "DPP"})"), UsageError);
}

TEST(SettingsOfRows, NeedlessOnesChangeNothing) {
  const auto without = resolved("{}").table();
  for (const char* given : {R"({"contiguous": false})", R"({"ddp_port": 8000})",
                            R"({"ddp_dist_backend": "nccl"})", R"({"_match_weights": true})"}) {
    EXPECT_EQ(resolved(given).table(), without) << given;
  }
}

TEST(SettingsOfRows, OlderSpellingsMeanTheKey) {
  const auto older = resolved(R"({"_prescaled_batch": true, "tensor_parallel_degree": 2})");
  EXPECT_TRUE(older.values().prescaled_batch);
  EXPECT_TRUE(resolved(R"({"prescaled_batch": true, "tensor_parallel_degree": 2})")
                  .values()
                  .prescaled_batch);
  for (const char* key : {"delayed_parameter_initialization", "delayed_param_initialization",
                          "delay_param_initialization"}) {
    const auto given = resolved(concat("{\"", key, "\": false}"));
    EXPECT_FALSE(given.values().delayed_parameter_initialization) << key;
  }
  EXPECT_THAT(refusal<UsageError>([] {
                resolved(R"({"delay_param_initialization": true,
                             "delayed_parameter_initialization": false})");
              }),
              HasSubstr("both mean the same"));
}

/// A value that has a row of its own is told from one that is mistyped.
TEST(SettingsOfRows, ValuesOfTheOriginalAreExplained) {
  EXPECT_THAT(refusal<UsageError>([] { resolved(R"({"pipeline": "_only_forward"})"); }),
              AllOf(HasSubstr("pipeline = \"_only_forward\""),
                    HasSubstr("expected \"interleaved\""), HasSubstr("torch::NoGradGuard")));
  EXPECT_THAT(refusal<UsageError>([] { resolved(R"({"pipeline": "simpel"})"); }),
              Not(HasSubstr("of the original")));
}

// ---- the document ------------------------------------------------------------------------------

constexpr const char* kBegin =
    "<!-- rows; SMP_REWRITE_DOCS=1 ./smp test -R config_original_names writes these tables -->\n\n";
constexpr const char* kEnd = "\n<!-- end of rows -->\n";

std::string or_dash(std::string_view text) { return text.empty() ? "—" : std::string(text); }

std::string cell_of_key(const std::string& name) {
  if (const auto* key = find_config_key(name)) return concat("`", key->name, "`");
  if (const auto turned = find_config_switch(name)) {
    return concat("true: `", turned->key, " = ", turned->value, "`");
  }
  if (find_needless_key(name) != nullptr) return "accepted, changes nothing";
  return "not yet";
}

std::string note_of_key(const OriginalKey& row) {
  std::string note(row.note);
  const auto add = [&](const std::string& more) { note += (note.empty() ? "" : "; ") + more; };
  if (const auto* key = find_needless_key(std::string(row.name))) add(key->reason);
  if (const auto* key = find_future_key(std::string(row.name))) add("asks for " + key->feature);
  return note;
}

std::string default_of_key(const std::string& name) {
  const auto* const key = find_config_key(name);
  return key == nullptr ? "" : key->default_text;
}

std::string tables() {
  std::ostringstream page;
  page << "## Settings\n\n| there | its default | here | default here | what differs |\n"
          "| --- | --- | --- | --- | --- |\n";
  for (const auto& row : original_keys()) {
    const std::string name(row.name);
    page << "| `" << name << "` | " << row.default_value << " | " << cell_of_key(name) << " | "
         << default_of_key(name) << " | " << note_of_key(row) << " |\n";
  }
  for (const auto& section : original_names()) {
    page << "\n## " << section.title << "\n\n| there | here | what differs |\n"
         << "| --- | --- | --- |\n";
    for (const auto& name : section.names) {
      page << "| `" << name.name << "` | " << or_dash(name.here) << " | " << name.note << " |\n";
    }
  }
  return page.str();
}

TEST(OriginalNames, AreInTheDocument) {
  const std::string path = support::source_file("docs/migrating.md");
  const std::string page = read_file(path);
  const auto begin = page.find(kBegin), end = page.find(kEnd);
  ASSERT_TRUE(begin != std::string::npos && end != std::string::npos && begin < end)
      << path << " lacks the lines around its tables:\n"
      << kBegin << kEnd;
  const std::string right = page.substr(0, begin) + kBegin + tables() + page.substr(end);
  if (std::getenv("SMP_REWRITE_DOCS") != nullptr) return write_file(path, right);
  EXPECT_EQ(page, right) << "SMP_REWRITE_DOCS=1 in the environment of this test rewrites " << path;
}

/// What the document shows of the programs that were carried over is in one of them.
TEST(OriginalNames, TheCarriedOverProgramsAreTheSamples) {
  const auto page = read_file(support::source_file("docs/migrating.md"));
  std::string program;
  for (const char* script : {"main", "t5", "bert", "recommender"}) {
    const auto name = concat("samples/ported/", script, ".cpp");
    program += read_file(support::source_file(name));
    EXPECT_THAT(page, HasSubstr(concat("(../", name, ")"))) << "named";
  }
  int blocks = 0;
  for (auto at = page.find("```cpp\n"); at != std::string::npos; at = page.find("```cpp\n", at)) {
    const auto begin = at + 7, end = page.find("```", begin);
    std::istringstream block(page.substr(begin, end - begin));
    for (std::string line; std::getline(block, line);) EXPECT_THAT(program, HasSubstr(line));
    ++blocks;
    at = end;
  }
  EXPECT_GT(blocks, 4);
}

}  // namespace original_names_test
}  // namespace smp::base
