// api/rank/setting_agreement.cpp: hashes, then a few lines of text for each setting.
#include "api/rank/setting_agreement.h"

#include <algorithm>
#include <map>
#include <set>
#include <sstream>

#include "base/check.h"
#include "config/config.h"

namespace smp {
namespace {

struct Setting {
  std::string value, origin;
};
using Settings = std::map<std::string, Setting>;  // by key

// Three lines a setting: "microbatches", "2", "flag --smp.microbatches".
std::string text_of(const base::ResolvedConfig& config) {
  std::string text;
  for (const auto& row : config.shared_rows()) {
    text += base::concat(row.key, '\n', row.value, '\n', row.origin, '\n');
  }
  return text;
}

Settings settings_of(const std::string& text) {
  Settings settings;
  std::istringstream in(text);
  for (std::string key; std::getline(in, key);) {
    auto& own = settings[key];
    std::getline(in, own.value);
    std::getline(in, own.origin);
  }
  return settings;
}

std::string said_by(std::size_t rank, const Settings& settings, const std::string& key) {
  const auto found = settings.find(key);
  if (found == settings.end()) return base::concat("rank ", rank, " does not know ", key);
  return base::concat("rank ", rank, " has ", key, " = ", found->second.value, " (",
                      found->second.origin, ")");
}

bool alike(const Settings& a, const Settings& b, const std::string& key) {
  const auto in_a = a.find(key), in_b = b.find(key);
  if (in_a == a.end() || in_b == b.end()) return in_a == a.end() && in_b == b.end();
  return in_a->second.value == in_b->second.value;
}

// "rank 0 has ..., rank 1 has ...", of each setting in which some rank differs from the first.
// Ranks with other libraries may know other ones.
std::vector<std::string> differences(const std::vector<Settings>& all) {
  std::set<std::string> keys;
  for (const auto& settings : all) {
    for (const auto& [key, setting] : settings) keys.insert(key);
  }
  std::vector<std::string> found;
  for (const auto& key : keys) {
    const auto other = std::find_if(all.begin(), all.end(), [&](const Settings& settings) {
      return !alike(settings, all[0], key);
    });
    if (other == all.end()) continue;
    found.push_back(said_by(0, all[0], key) + ", " +
                    said_by(static_cast<std::size_t>(other - all.begin()), *other, key));
  }
  return found;
}

}  // namespace

void require_same_settings(const GatherTexts& gather, const base::ResolvedConfig& config) {
  const auto hashes = gather(std::to_string(config.hash()));
  if (std::equal(hashes.begin() + 1, hashes.end(), hashes.begin())) return;
  std::vector<Settings> all;
  for (const auto& text : gather(text_of(config))) all.push_back(settings_of(text));
  std::string text = "the settings of the ranks differ:";
  for (const auto& difference : differences(all)) text += " " + difference + ";";
  throw UsageError(text + " give every rank the same flags, environment and configuration file");
}

}  // namespace smp
