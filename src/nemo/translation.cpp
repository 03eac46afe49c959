// nemo/translation.cpp: the order of the sections, and how a translation is shown.
#include "nemo/translation.h"

#include <filesystem>

#include "base/files.h"
#include "nemo/nemo_keys.h"
#include "nemo/references.h"
#include "nemo/sections.h"
#include "nemo/yaml_values.h"

namespace smp::nemo {
namespace {

using base::Json;

constexpr const char* kSettingsFile = "smp.json";
constexpr const char* kModelFile = "config.json";

std::string listed(const char* title, const std::vector<std::string>& lines) {
  if (lines.empty()) return "";
  std::string text = base::concat("\n", title, "\n");
  for (const auto& line : lines) text += "  " + line + "\n";
  return text;
}

/// Returns a value as a shell takes it.
std::string word_of(const Json& value) {
  if (!value.is_string()) return value.dump();
  auto text = value.get<std::string>();
  if (text.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                             "_-./:=,@%+") == std::string::npos &&
      !text.empty()) {
    return text;
  }
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

std::string command_of(const Translation& translation, const std::string& folder) {
  const auto path = [&](const char* file) {
    return word_of(folder.empty() ? file : (std::filesystem::path(folder) / file).string());
  };
  std::string text = base::concat(
      "mpirun -n ", translation.ranks ? std::to_string(*translation.ranks) : "RANKS", " llama");
  if (!translation.model.is_null()) text += " --config " + path(kModelFile);
  text += " --smp.config " + path(kSettingsFile);
  for (const auto& [name, value] : translation.recipe.items()) {
    text += base::concat(" --", name, " ", word_of(value));
  }
  return text;
}

std::string file_text(const Json& value) {
  return value.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace

Translation from_nemo(const std::string& text, const std::string& name) {
  auto tree = read_yaml(text, name);
  resolve_references(tree);
  NemoKeys keys(tree, name);
  Translation into;
  translate_job(keys, into);
  translate_recipe(keys, into);
  translate_model(keys, into);
  sort_left_over(keys, into);
  return into;
}

std::string text_of(const Translation& translation, const std::string& folder) {
  std::string text;
  if (folder.empty()) {
    text += base::concat("settings (", kSettingsFile, ")\n", file_text(translation.settings));
    if (!translation.model.is_null()) {
      text += base::concat("\nmodel (", kModelFile, ")\n", file_text(translation.model));
    }
  }
  text += base::concat("\nas samples/llama trains it\n  ", command_of(translation, folder), "\n");
  text += listed("not carried over", translation.lost);
  text += listed("changes nothing here", translation.needless);
  return text;
}

void write(const Translation& translation, const std::string& folder) {
  base::create_directories(folder);
  const std::filesystem::path path(folder);
  base::write_file((path / kSettingsFile).string(), file_text(translation.settings));
  if (translation.model.is_null()) return;
  base::write_file((path / kModelFile).string(), file_text(translation.model));
}

}  // namespace smp::nemo
