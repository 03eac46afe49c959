// config/config_sources.cpp: what the outside world says about the configuration.
#include "config/config_sources.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <optional>
#include <string_view>

#include "base/files.h"
#include "base/text/edit_distance.h"
#include "base/text/excerpt.h"
#include "config/config_keys.h"
#include "config/needless_keys.h"

namespace smp::base {
namespace {

constexpr const char* kStagesKey = "pipeline_parallel_degree";
constexpr const char* kStagesMember = "pp_size";  // of a plan file

constexpr std::string_view kFlagPrefix = "--smp.";
constexpr std::string_view kVariablePrefix = "SMP_";
constexpr const char* kLauncherVariable = "SM_HP_MP_PARAMETERS";
constexpr const char* kFileKey = "config";  // names the file, is no setting itself

std::string upper(std::string text) {
  for (char& c : text) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return text;
}

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

void add_code(const Config& code, Settings& settings) {
  const Config defaults;
  for (const ConfigKey& key : config_keys()) {
    const Json value = key.load(code);
    if (value == key.load(defaults)) continue;
    settings.found.push_back({key.name, value, false, ConfigSource::kCode, "Config in code"});
  }
}

/// Of a setting, as the config.json of a run has it as well: with the origin of the value. What was
/// a default there, or followed from another setting, is none of the file's.
const Json& value_of(const Json& entry) {
  static const Json kUnset;
  if (!entry.is_object() || !entry.contains("value") || !entry.contains("origin")) return entry;
  const Json& origin = entry.at("origin");
  const bool given =
      !origin.is_string() ||
      (origin != kDefaultOrigin && !origin.get<std::string>().starts_with(kImpliedOrigin));
  return given ? entry.at("value") : kUnset;
}

void add_json(const std::string& text, const std::string& name, ConfigSource source,
              Settings& settings) {
  const Json object = parse_json(text, name);
  SMP_REQUIRE(object.is_object(), name, ": expected one JSON object of keys, found ",
              excerpt(json_text(object)));
  for (const auto& [key, entry] : object.items()) {
    const Json& value = value_of(entry);
    if (key == "$schema" || value.is_null()) continue;
    const std::string place = json_position(text, key);
    const std::string origin =
        source == ConfigSource::kFile ? name + (place.empty() ? "" : ":" + place) : name;
    settings.found.push_back({key, value, false, source, origin});
  }
}

struct NamedFile {
  std::string path, origin;
};

// The file that a flag, or else the environment, names.
std::optional<NamedFile> config_file(const ConfigInput& input) {
  std::optional<NamedFile> file;
  const auto variable = input.environment.find("SMP_CONFIG");
  if (variable != input.environment.end() && !variable->second.empty()) {
    file = {variable->second, "environment SMP_CONFIG"};
  }
  for (const auto& [key, value] : input.flags) {
    if (key == kFileKey) file = {value, "flag --smp.config"};
  }
  return file;
}

// Who names a file that is not there may be a variable that was forgotten.
std::string read_settings(const NamedFile& file) {
  SMP_REQUIRE(!file.path.empty(), file.origin, " needs the path of a JSON file");
  try {
    return read_file(file.path, kMostJsonBytes);
  } catch (const UsageError& error) {
    throw UsageError(concat(error.what(), " (", file.origin, ")"));
  }
}

// Variables that start with SMP_ may belong to somebody else; one that looks like a misspelt key
// is a problem, any other is left alone.
void add_variable(const std::string& name, const std::string& text, Settings& settings) {
  const std::string key = lower(name.substr(kVariablePrefix.size()));
  if (find_config_key(key) || find_config_switch(key) || find_future_key(key) ||
      find_needless_key(key)) {
    settings.found.push_back({key, text, true, ConfigSource::kEnvironment, "environment " + name});
    return;
  }
  for (const std::string& known : all_key_names()) {
    if (edit_distance(key, known) > 2 || known.size() < 6) continue;
    settings.problems.push_back(concat("unknown key in environment ", excerpt(name),
                                       "; did you mean ", kVariablePrefix, upper(known), "?"));
    return;
  }
}

template <class Action>
void collect_problem(Settings& settings, Action action) {
  try {
    action();
  } catch (const Error& error) {
    settings.problems.push_back(error.what());
  }
}

}  // namespace

std::vector<std::pair<std::string, std::string>> take_flags(int& argc, char** argv) {
  std::vector<std::pair<std::string, std::string>> flags;
  int kept = std::min(argc, 1);
  int at = kept;
  for (; at < argc && std::string_view(argv[at]) != "--"; ++at) {
    std::string_view word = argv[at];
    if (!word.starts_with(kFlagPrefix)) {
      argv[kept++] = argv[at];
      continue;
    }
    word.remove_prefix(kFlagPrefix.size());
    const auto equals = word.find('=');
    std::string key(word.substr(0, equals));
    std::replace(key.begin(), key.end(), '-', '_');
    std::string value;
    if (equals != std::string_view::npos) {
      value = word.substr(equals + 1);
    } else if (at + 1 < argc && !std::string_view(argv[at + 1]).starts_with("--")) {
      value = argv[++at];
    }
    flags.emplace_back(std::move(key), std::move(value));
  }
  while (at < argc) argv[kept++] = argv[at++];
  argc = kept;
  argv[argc] = nullptr;
  return flags;
}

std::map<std::string, std::string> environment_settings() {
  std::map<std::string, std::string> found;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view line = *entry;
    const auto equals = line.find('=');
    const std::string name(line.substr(0, equals));
    if (!name.starts_with(kVariablePrefix) && name != kLauncherVariable) continue;
    found.emplace(name, equals == std::string_view::npos ? "" : line.substr(equals + 1));
  }
  return found;
}

Settings read_sources(const ConfigInput& input) {
  Settings settings;
  add_code(input.code, settings);
  if (const auto file = config_file(input)) {
    collect_problem(settings, [&] {
      add_json(read_settings(*file), file->path, ConfigSource::kFile, settings);
    });
  }
  const auto launcher = input.environment.find(kLauncherVariable);
  if (launcher != input.environment.end() && !launcher->second.empty()) {
    collect_problem(settings, [&] {
      add_json(launcher->second, concat("environment ", kLauncherVariable), ConfigSource::kLauncher,
               settings);
    });
  }
  for (const auto& [name, text] : input.environment) {
    if (name.starts_with(kVariablePrefix)) add_variable(name, text, settings);
  }
  for (const auto& [key, text] : input.flags) {
    if (key == kFileKey) continue;
    settings.found.push_back(
        {key, text, true, ConfigSource::kFlag, concat("flag ", kFlagPrefix, excerpt(key))});
  }
  return settings;
}

const std::vector<std::string>& recorded_keys() {
  static const std::vector<std::string> keys{
      // Who computes what.
      kStagesKey, "tensor_parallel_degree", "placement_strategy", "optimize", "prescaled_batch",
      // Numbers.
      "precision", "stochastic_rounding", "master_weights", "fp32_grad_accumulation",
      "shard_optimizer_state", "broadcast_buffers", "seed", "loss", "loss_weights",
      // The order.
      "microbatches", "pipeline", "active_microbatches", "static_mode", "fast_mode",
      "promised_outputs",
      // The paths.
      "transport", "lend_tensors", "progress_thread", "device_collectives"};
  return keys;
}

Json settings_to_record(const ResolvedConfig& config) {
  const Config& values = config.values();
  Json settings = Json::object();
  for (const std::string& key : recorded_keys()) {
    settings[key] = find_config_key(key)->load(values);
  }
  if (values.pipeline != "interleaved") settings.erase("active_microbatches");
  if (!values.static_mode) settings.erase("fast_mode");
  if (values.loss != "weights") settings.erase("loss_weights");
  if (values.transport == "local") settings.erase("transport");
  return settings;
}

Json recorded_settings(const std::string& text, const std::string& name) {
  const Json file = parse_json(text, name);
  const bool has_run = file.is_object() && file.contains("format") && file.contains(kRunMember) &&
                       file[kRunMember].is_object() && file[kRunMember].contains(kSettingsMember);
  const Json none = Json::object();
  if (!has_run) return none;
  Json settings = file[kRunMember][kSettingsMember];
  if (!settings.is_object()) return none;
  // Older builds have only the plan's own number.
  if (!settings.contains(kStagesKey) && file.contains(kStagesMember)) {
    settings[kStagesKey] = file[kStagesMember];
  }
  return settings;
}

}  // namespace smp::base
