// config/config.cpp: which setting wins.
#include "config/config.h"

#include <algorithm>
#include <iterator>

#include "base/check.h"
#include "base/files.h"
#include "base/text/edit_distance.h"
#include "base/text/excerpt.h"
#include "config/config_keys.h"
#include "config/config_sources.h"
#include "config/given_settings.h"
#include "config/needless_keys.h"
#include "config/original_names.h"
#include "config/setting_checks.h"
#include "config/settings_text.h"
#include "smp/version.h"

namespace smp::base {

/// Works through the sources once and gathers problems on the way.
class ConfigResolver {
 public:
  ResolvedConfig run(const ConfigInput& input) {
    Settings settings = read_sources(input);
    problems_ = std::move(settings.problems);
    for (Setting& setting : settings.found) take(std::move(setting));
    apply_plan();
    apply_winners();
    apply_precision();
    result_.world_size_ = input.world_size;
    SettingChecks(values(), given_, problems_, result_.warnings_).run(input.world_size);
    check_needless();
    if (!problems_.empty() || !unavailable_.empty()) fail();
    finish();
    return std::move(result_);
  }

 private:
  Config& values() { return result_.values_; }
  static std::string named(const Setting& setting) { return GivenSettings::named(setting); }
  std::string named(const std::string& key) const { return given_.named(key); }

  template <class... Parts>
  void problem(const Parts&... parts) {
    problems_.push_back(concat(parts...));
  }

  // Settings arrive in ascending precedence: a later one of the same key wins.
  void take(Setting setting) {
    if (const ConfigKey* key = find_config_key(setting.key)) {
      const Setting* before = given_.find(key->name);
      const bool contradiction = before != nullptr && before->source == setting.source &&
                                 before->key != setting.key && before->value != setting.value;
      if (contradiction) {
        problem(named(setting), " contradicts ", named(*before), "; both mean the same: keep one");
      }
      given_.set(key->name, std::move(setting));
    } else if (const auto switched = find_config_switch(setting.key)) {
      take_switch(std::move(setting), *switched);
    } else if (const FutureKey* future = find_future_key(setting.key)) {
      futures_.insert_or_assign(future->name, std::move(setting));
    } else if (const NeedlessKey* needless = find_needless_key(setting.key)) {
      needless_.insert_or_assign(needless->name, std::move(setting));
    } else {
      const auto instead = instead_of_argument(setting.key);
      problem("unknown key \"", excerpt(setting.key), "\" (", setting.origin, ")",
              instead.empty() ? did_you_mean(setting.key, all_key_names()) : instead);
    }
  }

  /// An older key that is true stands for a value of another; false takes back what a weaker source
  /// says.
  void take_switch(Setting setting, const ConfigSwitch& switched) {
    const Json on = typed(setting, KeyType::kBoolean);
    if (!on.is_boolean() && on != 0 && on != 1) {
      return problem(named(setting), ": expected true or false");
    }
    const Setting* before = given_.find(switched.key);
    const bool is_on = on == true || on == 1;
    if (!is_on) {
      const bool overrules =
          before != nullptr && before->value == switched.value && before->source != setting.source;
      if (overrules) given_.remove(switched.key);
      return;
    }
    Setting meant{switched.key, switched.value, false, setting.source,
                  concat(setting.key, " = true, ", setting.origin)};
    if (before != nullptr && before->source == setting.source && before->value != meant.value) {
      problem(named(meant), " contradicts ", named(*before), "; keep one");
    }
    given_.set(switched.key, std::move(meant));
  }

  static Json typed(const Setting& setting, KeyType type) {
    return setting.is_text ? value_from_text(type, setting.value.get<std::string>())
                           : setting.value;
  }

  /// Returns `value` as a field of that key holds it (1 of a switch is true); as it is if it is
  /// none for the key.
  static Json held(const ConfigKey& key, const Json& value) {
    Config config;
    return key.store(config, value) ? key.load(config) : value;
  }

  /// What a plan file says of its run counts where the file is named: it overrules what weaker
  /// sources give, and the others must say the same.
  void apply_plan() {
    const Setting* named_file = given_.find("plan_file");
    if (named_file == nullptr) return;
    const Setting plan = *named_file;
    const Json path = typed(plan, KeyType::kString);
    if (!path.is_string() || path == "") return;
    const Json settings = read_plan(path.get<std::string>(), plan);
    for (const auto& [name, value] : settings.items()) {
      take_recorded(name, value, plan);
    }
  }

  /// Returns the settings in the plan file `path`. A file that nobody can use is a problem here,
  /// before a rank has waited for anything.
  Json read_plan(const std::string& path, const Setting& plan) {
    try {
      result_.plan_text_ = read_file(path, kMostJsonBytes);
      return recorded_settings(result_.plan_text_, path);
    } catch (const UsageError& error) {
      problem(named(plan), ": ", error.what(),
              "; name the plan.json of a run's folder, which every rank reads, or leave it out to "
              "have a plan made");
      return Json::object();
    }
  }

  void take_recorded(const std::string& name, Json value, const Setting& plan) {
    const auto& recorded = recorded_keys();
    if (std::find(recorded.begin(), recorded.end(), name) == recorded.end()) {
      return problem(named(plan), ": \"", kRunMember, "\" has no setting \"", excerpt(name), "\"",
                     did_you_mean(name, recorded));
    }
    const auto& path = plan.value.get_ref<const std::string&>();
    const bool has_lists =
        name == "pipeline" && value.is_string() && value.get<std::string>().starts_with("file:");
    if (has_lists) value = "file:" + path;  // they are quoted there
    const ConfigKey& key = *find_config_key(name);
    const Setting* own = given_.find(name);
    const bool of_one_process = name == "transport" && own != nullptr && own->value == "local";
    if (of_one_process) return;  // run_local says so, whoever says otherwise
    if (own != nullptr && own->source >= plan.source) {
      if (held(key, typed(*own, key.type)) != held(key, value)) {
        problem(named(*own), " contradicts ", name, " = ", excerpt(json_text(value)),
                " of the run in ", named(plan), "; leave one out (in the file: \"", name,
                "\" of \"", kRunMember, "\")");
      }
      return;
    }
    given_.remove(name);
    if (value != key.load(values()) && !key.store(values(), value)) {
      return problem(named(plan), ": \"", name, "\" of \"", kRunMember, "\" is ",
                     excerpt(json_text(value)), ", expected ", key.expected);
    }
    given_.imply(name, kImpliedOrigin + named(plan));
  }

  void apply_winners() {
    for (const ConfigKey& key : config_keys()) {
      const Setting* winner = given_.find(key.name);
      if (winner == nullptr) continue;
      const Json value = typed(*winner, key.type);
      if (key.store(values(), value)) continue;
      problem(named(*winner), ": expected ", key.expected,
              value.is_string() ? instead_of_value(key.name, value.get<std::string>()) : "");
    }
    for (const FutureKey& key : future_keys()) {
      const auto wanted = futures_.find(key.name);
      if (wanted == futures_.end() || typed(wanted->second, key.type) == key.default_value)
        continue;
      unavailable(named(wanted->second), key.feature,
                  key.default_value.is_null()
                      ? "remove it"
                      : concat("remove it, or set it to ", key.default_value.dump()));
    }
  }

  void unavailable(const std::string& what, const std::string& feature, const std::string& remedy) {
    unavailable_.push_back(concat(what, ": known, but ", feature, " is not yet available in smp ",
                                  SMP_VERSION, "; ", remedy));
  }

  /// A precision with parameters of 16 bits says how optimizers step them.
  void apply_precision() {
    const auto& precision = values().precision;
    const bool masters = precision == "bf16" || precision == "fp16";
    if (!masters && precision != "bf16_sr") return;
    imply("master_weights", values().master_weights, masters);
    imply("stochastic_rounding", values().stochastic_rounding, !masters);
  }

  void imply(const char* key, bool& value, bool wanted) {
    if (given_.given(key) && value != wanted) {
      problem(named(key), " contradicts ", named("precision"), "; keep one");
    } else if (value != wanted) {
      given_.imply(key, kImpliedOrigin + named("precision"));
    }
    value = wanted;
  }

  /// Says why keys of the original that are given change nothing.
  void check_needless() {
    for (const auto& [name, setting] : needless_) {
      const NeedlessKey& key = *find_needless_key(name);
      const Json value = typed(setting, key.type);
      if (!key.takes(value)) {
        problem(named(setting), ": expected ", key.expected);
      } else if (value != key.default_value) {
        result_.warnings_.push_back(concat(named(setting), " changes nothing: ", key.reason));
      }
    }
    if (asks_for("load_partition", false) && !values().plan_file.empty()) {
      problem(named(needless_.at("load_partition")), " contradicts ", named("plan_file"),
              ", which is read where it is set; keep one");
    }
    if (asks_for("horovod", true) && !values().ddp) {
      problem(named(needless_.at("horovod")), " contradicts ", named("ddp"),
              ": replicas are trained by this library; leave ddp out");
    }
  }
  bool asks_for(const char* needless, bool value) const {
    const auto found = needless_.find(needless);
    return found != needless_.end() && typed(found->second, KeyType::kBoolean) == Json(value);
  }

  [[noreturn]] void fail() const {
    std::vector<std::string> all = problems_;
    all.insert(all.end(), unavailable_.begin(), unavailable_.end());
    std::string text = "configuration: ";
    if (all.size() == 1) {
      text += all.front();
    } else {
      text += concat(all.size(), " problems");
      for (std::size_t i = 0; i < all.size(); ++i) text += concat("\n  ", i + 1, ". ", all[i]);
    }
    if (problems_.empty()) throw UnsupportedError(text);
    throw UsageError(text);
  }

  void finish() {
    for (const ConfigKey& key : config_keys()) {
      const std::string value = json_text(key.load(values()));
      const Setting* winner = given_.find(key.name);
      const auto* const implied = given_.implied(key.name);
      result_.rows_.push_back({key.name, value,
                               winner != nullptr    ? winner->origin
                               : implied != nullptr ? *implied
                                                    : kDefaultOrigin});
    }
  }

  ResolvedConfig result_;
  GivenSettings given_{result_.values_};
  std::map<std::string, Setting> futures_;
  std::map<std::string, Setting> needless_;
  std::vector<std::string> problems_;
  std::vector<std::string> unavailable_;
};

ResolvedConfig resolve_config(const ConfigInput& input) { return ConfigResolver().run(input); }

const std::string& ResolvedConfig::origin(const std::string& key) const {
  const auto row = std::find_if(rows_.begin(), rows_.end(),
                                [&](const ResolvedValue& value) { return value.key == key; });
  SMP_ASSERT(row != rows_.end(), "no configuration key ", key);
  return row->origin;
}

std::vector<ResolvedValue> ResolvedConfig::shared_rows() const {
  std::vector<ResolvedValue> shared;
  std::copy_if(
      rows_.begin(), rows_.end(), std::back_inserter(shared),
      [](const ResolvedValue& row) { return find_config_key(row.key)->same_on_all_ranks; });
  return shared;
}

std::string ResolvedConfig::to_json() const {
  Json object = Json::object();
  for (const ResolvedValue& row : rows_) {
    object[row.key] = {{"value", Json::parse(row.value)}, {"origin", row.origin}};
  }
  return object.dump(2);
}

std::string ResolvedConfig::table() const { return settings_table(rows_); }

std::string ResolvedConfig::explained(int width) const { return explained_settings(rows_, width); }

Arrangement ResolvedConfig::arrangement() const {
  Arrangement wanted;
  wanted.world_size = world_size_;
  wanted.pp_size = values_.pipeline_parallel_degree.value_or(1);
  wanted.tp_size = values_.tensor_parallel_degree;
  wanted.placement = values_.placement_strategy;
  return wanted;
}

}  // namespace smp::base
