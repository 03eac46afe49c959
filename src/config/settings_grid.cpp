// config/settings_grid.cpp: see the header.
#include "config/settings_grid.h"

#include <algorithm>
#include <cctype>
#include <sstream>

#include "base/check.h"
#include "base/text/edit_distance.h"
#include "base/text/excerpt.h"
#include "config/config_keys.h"
#include "config/needless_keys.h"

namespace smp::base {
namespace {

constexpr const char* kFileOfSettings = "config";

/// Returns the name of the setting that `key` means, which may be its alias.
std::string setting_named(const std::string& key) {
  if (key == kFileOfSettings) return key;
  if (const auto* const known = find_config_key(key)) return known->name;
  if (const auto switched = find_config_switch(key)) {
    throw UsageError(concat("--smp.", key, " is an older key for --smp.", switched->key, " = ",
                            switched->value, "; give that one its values"));
  }
  if (const auto* const needless = find_needless_key(key)) {
    throw UsageError(concat("--smp.", key, " changes nothing: ", needless->reason));
  }
  SMP_REQUIRE(find_future_key(key) == nullptr, "--smp.", key,
              " is not available yet (docs/configuration.md)");
  throw UsageError(concat("there is no setting --smp.", excerpt(key),
                          did_you_mean(key, all_key_names()), "; smp config lists them"));
}

/// True if a value of the setting is a list with commas.
bool holds_commas(const std::string& key) {
  const auto* const known = find_config_key(key);
  return known != nullptr && (known->type == KeyType::kNumbers ||
                              known->expected.find("commas between them") != std::string::npos);
}

std::vector<std::string> pieces_of(const std::string& text, char separator) {
  std::vector<std::string> pieces;
  std::istringstream list(text);
  for (std::string piece; std::getline(list, piece, separator);) pieces.push_back(piece);
  if (text.empty() || text.back() == separator) pieces.emplace_back();
  return pieces;
}

SettingsAxis axis_of(const std::string& key, const std::string& text) {
  const bool by_semicolons = holds_commas(key) || text.find(';') != std::string::npos;
  SettingsAxis axis{key, pieces_of(text, by_semicolons ? ';' : ',')};
  for (auto value = axis.values.begin(); value != axis.values.end(); ++value) {
    SMP_REQUIRE(!value->empty(), "--smp.", key, " needs values, such as --smp.", key,
                " A,B, and has '", excerpt(text), "'");
    SMP_REQUIRE(std::find(axis.values.begin(), value, *value) == value, "--smp.", key,
                " has the value ", excerpt(*value), " twice");
  }
  return axis;
}

}  // namespace

std::vector<SettingsAxis> settings_axes(
    const std::vector<std::pair<std::string, std::string>>& flags) {
  std::vector<SettingsAxis> axes;
  std::size_t count = 1;
  for (const auto& [key, text] : flags) {
    axes.push_back(axis_of(setting_named(key), text));
    const auto& axis = axes.back();
    SMP_REQUIRE(std::none_of(axes.begin(), axes.end() - 1,
                             [&](const auto& other) { return other.key == axis.key; }),
                "--smp.", axis.key, " is given twice; put its values into one list");
    SMP_REQUIRE(axis.values.size() <= kMostCombinations / count, "these settings have more than ",
                kMostCombinations, " combinations");
    count *= axis.values.size();
  }
  return axes;
}

std::vector<std::vector<std::string>> combinations(const std::vector<SettingsAxis>& axes) {
  std::vector<std::vector<std::string>> all = {{}};
  for (const auto& axis : axes) {
    std::vector<std::vector<std::string>> longer;
    for (const auto& begun : all) {
      for (const auto& value : axis.values) {
        longer.push_back(begun);
        longer.back().push_back(value);
      }
    }
    all = std::move(longer);
  }
  return all;
}

std::string variable_of(const std::string& key) {
  std::string name = "SMP_" + key;
  for (char& c : name) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return name;
}

}  // namespace smp::base
