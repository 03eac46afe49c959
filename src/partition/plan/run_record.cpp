// partition/plan/run_record.cpp: the member "run" of plan.json, a line for each setting and route.
#include "partition/plan/run_record.h"

#include <charconv>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/text/excerpt.h"
#include "config/config_sources.h"
#include "config/json.h"
#include "partition/plan/plan_json.h"

namespace smp::partitioning {
namespace {

using base::concat;
using base::Json;
using base::json_member;
using base::json_text;

constexpr const char* kLists = "lists";
constexpr const char* kRanks = "ranks";
constexpr const char* kRoutes = "routes";
constexpr int kMostRanks = 1 << 20;  // a larger number is a slip of the pen

std::string settings_lines(const std::string& settings) {
  std::string text;
  const Json object = base::parse_json(settings, "the settings of the run");
  for (const auto& [key, value] : object.items()) {
    text += concat(text.empty() ? "\n      " : ",\n      ", json_text(key), ": ", json_text(value));
  }
  return concat("{", text, "\n    }");
}

std::string route_lines(const std::vector<RunRecord::Route>& routes) {
  std::string text;
  for (const auto& [from, to, over] : routes) {
    text += concat(text.empty() ? "\n      " : ",\n      ",
                   json_text(Json{{"from", from}, {"to", to}, {"over", over}}));
  }
  return concat("[", text, "\n    ]");
}

std::string run_text(const RunRecord& run) {
  std::string text = concat("  \"", base::kRunMember, "\": {\n    \"", base::kSettingsMember,
                            "\": ", settings_lines(run.settings));
  if (!run.lists.empty()) text += concat(",\n    \"", kLists, "\": ", json_text(run.lists));
  text += concat(",\n    \"", kRanks, "\": ", run.ranks);
  if (!run.routes.empty()) text += concat(",\n    \"", kRoutes, "\": ", route_lines(run.routes));
  return text + "\n  },\n";
}

/// Reads a number at the start of `text` and takes it off.
std::optional<int> take_rank(std::string_view& text) {
  int rank = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), rank);
  if (error != std::errc() || rank < 0 || rank >= kMostRanks) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return rank;
}

bool take(std::string_view& text, std::string_view word) {
  if (!text.starts_with(word)) return false;
  text.remove_prefix(word.size());
  return true;
}

/// Reads what ranks_text() wrote.
std::vector<int> ranks_of(const std::string& written) {
  std::vector<int> ranks;
  std::string_view text = written;
  do {
    const auto first = take_rank(text);
    const auto last = take(text, "-") ? take_rank(text) : first;
    SMP_REQUIRE(first && last && *first <= *last, "a route of the run is to \"",
                base::excerpt(written), "\"; expected ranks, such as \"1-3, 6\"");
    for (int rank = *first; rank <= *last; ++rank) ranks.push_back(rank);
  } while (take(text, ", "));
  SMP_REQUIRE(text.empty(), "a route of the run is to \"", base::excerpt(written),
              "\"; expected ranks, such as \"1-3, 6\"");
  return ranks;
}

RunRecord record_from_json(const Json& json, const std::string& name) {
  RunRecord run;
  run.settings = json_text(json_member<Json>(json, base::kSettingsMember, name));
  SMP_REQUIRE(run.settings.starts_with('{'), name, ": \"", base::kSettingsMember,
              "\" must map keys to values");
  if (json.contains(kLists)) run.lists = json_member<std::string>(json, kLists, name);
  run.ranks = json_member<int>(json, kRanks, name);
  if (!json.contains(kRoutes)) return run;
  for (const Json& route : json_member<std::vector<Json>>(json, kRoutes, name)) {
    run.routes.push_back({json_member<int>(route, "from", name),
                          json_member<std::string>(route, "to", name),
                          json_member<std::string>(route, "over", name)});
    try {
      static_cast<void>(ranks_of(run.routes.back().to));
    } catch (const UsageError& error) {
      throw UsageError(concat(name, ": ", error.what()));
    }
  }
  return run;
}

}  // namespace

std::map<int, std::string> RunRecord::routes_from(int rank) const {
  std::map<int, std::string> found;
  for (const auto& route : routes) {
    if (route.from != rank) continue;
    for (const int to : ranks_of(route.to)) found[to] = route.over;
  }
  return found;
}

std::string ranks_text(const std::vector<int>& ranks) {
  std::string text;
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    text += concat(text.empty() ? "" : ", ", ranks[i]);
    if (last > i) text += concat('-', ranks[last]);
    i = last + 1;
  }
  return text;
}

std::string plan_text(const PartitionPlan& plan, const RunRecord& run) {
  return plan_text(plan, run_text(run));
}

std::optional<RunRecord> find_run_record(const std::string& text, const std::string& name) {
  const Json json = base::parse_json(text, name);
  const bool has_run = json.is_object() && json.contains("format") && json["format"].is_string() &&
                       json.contains(base::kRunMember);
  if (!has_run) return std::nullopt;
  return record_from_json(json[base::kRunMember], concat(name, ": \"", base::kRunMember, "\""));
}

}  // namespace smp::partitioning
