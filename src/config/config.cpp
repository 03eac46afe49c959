// config/config.cpp: which setting wins, and whether all of them together make sense.
#include "config/config.h"

#include <algorithm>
#include <set>
#include <sstream>

#include "base/machine/device.h"
#include "base/text/edit_distance.h"
#include "base/text/excerpt.h"
#include "config/config_keys.h"
#include "config/config_sources.h"
#include "config/needless_keys.h"
#include "config/original_names.h"
#include "smp/version.h"

namespace smp::base {

/// Works through the sources once and gathers problems on the way.
class ConfigResolver {
 public:
  ResolvedConfig run(const ConfigInput& input) {
    Settings settings = read_sources(input);
    problems_ = std::move(settings.problems);
    for (Setting& setting : settings.found) take(std::move(setting));
    apply_winners();
    apply_precision();
    check_world(input.world_size);
    check_placement();
    check_stage_weights();
    check_devices();
    check_pipeline();
    check_masters();
    check_needless();
    if (!problems_.empty() || !unavailable_.empty()) fail();
    finish();
    return std::move(result_);
  }

 private:
  Config& values() { return result_.values_; }

  // "microbatches = 0 (flag --smp.microbatches)"
  static std::string named(const Setting& setting) {
    const std::string text =
        setting.is_text ? setting.value.get<std::string>() : json_text(setting.value);
    return concat(setting.key, " = ", text.empty() ? "nothing" : excerpt(text), " (",
                  setting.origin, ")");
  }
  std::string named(const std::string& key) const {
    const auto winner = winners_.find(key);
    if (winner != winners_.end()) return named(winner->second);
    return concat(key, " = ", json_text(find_config_key(key)->load(result_.values_)), " (default)");
  }
  bool given(const std::string& key) const { return winners_.contains(key); }

  template <class... Parts>
  void problem(const Parts&... parts) {
    problems_.push_back(concat(parts...));
  }

  // Settings arrive in ascending precedence: a later one of the same key wins.
  void take(Setting setting) {
    if (const ConfigKey* key = find_config_key(setting.key)) {
      const auto before = winners_.find(key->name);
      const bool contradiction =
          before != winners_.end() && before->second.source == setting.source &&
          before->second.key != setting.key && before->second.value != setting.value;
      if (contradiction) {
        problem(named(setting), " contradicts ", named(before->second),
                "; both mean the same: keep one");
      }
      winners_.insert_or_assign(key->name, std::move(setting));
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
    const auto before = winners_.find(switched.key);
    const bool is_on = on == true || on == 1;
    if (!is_on) {
      const bool overrules = before != winners_.end() && before->second.value == switched.value &&
                             before->second.source != setting.source;
      if (overrules) winners_.erase(before);
      return;
    }
    Setting meant{switched.key, switched.value, false, setting.source,
                  concat(setting.key, " = true, ", setting.origin)};
    if (before != winners_.end() && before->second.source == setting.source &&
        before->second.value != meant.value) {
      problem(named(meant), " contradicts ", named(before->second), "; keep one");
    }
    winners_.insert_or_assign(switched.key, std::move(meant));
  }

  static Json typed(const Setting& setting, KeyType type) {
    return setting.is_text ? value_from_text(type, setting.value.get<std::string>())
                           : setting.value;
  }

  void apply_winners() {
    for (const ConfigKey& key : config_keys()) {
      const auto winner = winners_.find(key.name);
      if (winner == winners_.end()) continue;
      if (key.store(values(), typed(winner->second, key.type))) continue;
      problem(named(winner->second), ": expected ", key.expected);
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
    if (given(key) && value != wanted) {
      problem(named(key), " contradicts ", named("precision"), "; keep one");
    } else if (value != wanted) {
      implied_[key] = concat(kImpliedOrigin, named("precision"));
    }
    value = wanted;
  }

  void check_masters() {
    if (!values().master_weights || !values().stochastic_rounding) return;
    problem(named("master_weights"), " and ", named("stochastic_rounding"),
            ": rounding by chance is for parameters without float32 values; keep one of the two");
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

  void check_world(int started) {
    result_.world_size_ = started;
    if (result_.world_size_ > 0) check_degrees(result_.world_size_);
    if (result_.world_size_ > 0 && !values().active_microbatches) {
      values().active_microbatches = 2 * values().pipeline_parallel_degree.value_or(1) + 2;
    }
  }

  /// Pipelines are made of what tensor parallelism leaves: each stage has that many ranks.
  void check_degrees(int world) {
    const int tp = values().tensor_parallel_degree;
    const auto name = named("tensor_parallel_degree");
    if (world % tp != 0) {
      problem(name, ": ", world, world == 1 ? " rank was" : " ranks were",
              " started, which cannot be divided by ", tp, "; start a multiple of ", tp,
              " ranks (mpirun -n ", tp, "), or set another degree");
    } else if (tp > 1 && !values().ddp) {
      problem(name, " makes ", tp, " ranks that read different samples, but ", named("ddp"),
              "; leave one of the keys out");
    } else {
      check_degree(world, tp);
    }
  }

  void check_degree(int world, int tp) {
    auto& degree = values().pipeline_parallel_degree;
    if (!degree) degree = world / tp;
    const int ranks = *degree * tp;  // of one pipeline
    const auto with = tp > 1 ? " with " + named("tensor_parallel_degree") : std::string();
    if (ranks > world) {
      problem(named("pipeline_parallel_degree"), with, ": needs ", ranks, " ranks, but ", world,
              world == 1 ? " was" : " were", " started; start ", ranks, " (mpirun -n ", ranks,
              "), or leave the key out to use all ranks");
    } else if (world % ranks != 0) {
      problem(named("pipeline_parallel_degree"), with, ": ", world,
              " ranks cannot be divided into pipelines of ", ranks, "; start a multiple of ", ranks,
              " ranks, or leave the key out");
    } else if (ranks < world && !values().ddp) {
      problem(named("pipeline_parallel_degree"), " of ", world, " ranks makes ", world / *degree,
              " replicas, but ", named("ddp"), "; start ", *degree,
              " ranks, or leave one of the keys out");
    }
  }

  void check_placement() {
    const auto& stages = values().pipeline_parallel_degree;
    const auto& stage = values().default_partition;
    if (stage && stages && *stage >= *stages) {
      problem(named("default_partition"), ": there are ", *stages, " stages, numbered from 0");
    }
    if (!values().auto_partition && !stage && values().plan_file.empty()) {
      problem(named("auto_partition"),
              ": default_partition is not set; set it to the stage of every module that is not "
              "placed by hand, for example 0");
    }
  }

  void check_stage_weights() {
    const auto stages = static_cast<std::size_t>(values().pipeline_parallel_degree.value_or(0));
    if (stages == 0) return;
    const auto speeds = values().stage_speeds.size(), memory = values().stage_memory.size();
    if (speeds != 0 && speeds != stages) {
      problem(named("stage_speeds"), ": ", speeds, " numbers for ", stages,
              " stages; give one per stage");
    }
    if (memory > 1 && memory != stages) {
      problem(named("stage_memory"), ": ", memory, " numbers for ", stages,
              " stages; give one per stage, or one for all");
    }
  }

  void check_devices() {
    const auto stages = static_cast<std::size_t>(values().pipeline_parallel_degree.value_or(0));
    const auto names = split_devices(values().devices, stages == 0 ? 1 : stages);
    for (const std::string& name : std::set(names.begin(), names.end())) {
      if (find_device(name) != nullptr) continue;
      problem(named("devices"), ": there is no device \"", excerpt(name), "\"",
              did_you_mean(name, device_names()), "; known are ", joined(device_names()));
    }
    if (names.empty()) return;
    if (stages != 0 && names.size() != stages) {
      problem(named("devices"), ": ", names.size(), " devices for ", stages,
              " stages; give one per stage, or one for all");
    }
    if (values().trace_repeats > 0) {
      problem(named("devices"), " contradicts ", named("trace_repeats"),
              ": a clock measures this machine only; keep one");
    }
    if (values().skip_tracing) {
      problem(named("devices"), " contradicts ", named("skip_tracing"),
              ": what is not run cannot be priced; keep one");
    }
  }

  static std::string joined(const std::vector<std::string>& names) {
    std::string text;
    for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
    return text;
  }

  void check_modes() {
    if (!given("fast_mode")) return;
    if (!values().fast_mode && !values().static_mode) {
      result_.warnings_.push_back(
          concat(named("fast_mode"),
                 " has no effect without static_mode; promised_outputs = false makes results go "
                 "through their callers"));
    }
    if (!values().fast_mode) return;
    if (!values().static_mode) {
      problem(named("fast_mode"),
              " needs static_mode; set static_mode to true as well, or leave "
              "fast_mode out: without static_mode promised_outputs does what it does");
    }
    if (!values().promised_outputs) {
      problem(named("fast_mode"), " contradicts ", named("promised_outputs"), "; keep one");
    }
  }

  void check_pipeline() {
    check_modes();
    const auto count = values().loss_weights.size();
    if (values().loss == "weights" && count != static_cast<std::size_t>(values().microbatches)) {
      problem("loss_weights has ", count, " numbers for ", named("microbatches"),
              "; give one per microbatch");
    }
    if (values().loss != "weights" && count > 0) {
      problem(named("loss_weights"), " has no effect with ", named("loss"),
              "; set loss to \"weights\" or remove the weights");
    }
    if (!given("active_microbatches") || !values().active_microbatches) return;
    if (*values().active_microbatches > values().microbatches) {
      result_.warnings_.push_back(
          concat(named("active_microbatches"), " is more than ", named("microbatches")));
    }
    if (values().pipeline != "interleaved") {
      result_.warnings_.push_back(concat(named("active_microbatches"), " has no effect with ",
                                         named("pipeline"),
                                         "; set pipeline to \"interleaved\" or remove it"));
    }
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
      const auto winner = winners_.find(key.name);
      const auto implied = implied_.find(key.name);
      result_.rows_.push_back({key.name, value,
                               winner != winners_.end()    ? winner->second.origin
                               : implied != implied_.end() ? implied->second
                                                           : kDefaultOrigin});
    }
  }

  std::map<std::string, Setting> winners_;  // by the key's main name
  std::map<std::string, Setting> futures_;
  std::map<std::string, Setting> needless_;
  std::map<std::string, std::string> implied_;  // by key: the setting that has set it
  std::vector<std::string> problems_;
  std::vector<std::string> unavailable_;
  ResolvedConfig result_;
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

namespace {

// A value with its unit; an unset one as what it means.
std::string shown(const ResolvedValue& row) {
  const ConfigKey& key = *find_config_key(row.key);
  const bool unset = row.value == "null" || row.value == "\"\"" || row.value == "[]";
  if (unset) return concat("(", key.default_text, ")");
  return key.unit.empty() ? row.value : concat(row.value, " ", key.unit);
}

/// Key, value and origin of each row, aligned.
std::vector<std::string> table_lines(const std::vector<ResolvedValue>& rows) {
  std::size_t key_width = 0;
  std::size_t value_width = 0;
  for (const ResolvedValue& row : rows) {
    key_width = std::max(key_width, row.key.size());
    value_width = std::max(value_width, shown(row).size());
  }
  std::vector<std::string> lines;
  for (const ResolvedValue& row : rows) {
    lines.push_back(concat(row.key, std::string(key_width - row.key.size() + 2, ' '), shown(row),
                           std::string(value_width - shown(row).size() + 2, ' '), row.origin,
                           "\n"));
  }
  return lines;
}

constexpr std::size_t kIndentWidth = 4;

/// Words of `text` in lines of at most `width` characters.
std::string paragraph(const std::string& text, std::size_t width) {
  std::string lines;
  std::string line(kIndentWidth, ' ');
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    if (line.size() > kIndentWidth && line.size() + 1 + word.size() > width) {
      lines += line + "\n";
      line = std::string(kIndentWidth, ' ');
    }
    line += (line.size() > kIndentWidth ? " " : "") + word;
  }
  return lines + line + "\n";
}

}  // namespace

std::string ResolvedConfig::table() const {
  std::string text;
  for (const auto& line : table_lines(rows_)) text += line;
  return text;
}

std::string ResolvedConfig::explained(int width) const {
  const auto lines = table_lines(rows_);
  std::string text;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const auto* const key = find_config_key(rows_[i].key);
    text += lines[i] + paragraph(concat(key->meaning, "; takes ", key->expected,
                                        "; without it: ", key->default_text),
                                 static_cast<std::size_t>(width));
  }
  return text;
}

Arrangement ResolvedConfig::arrangement() const {
  Arrangement wanted;
  wanted.world_size = world_size_;
  wanted.pp_size = values_.pipeline_parallel_degree.value_or(1);
  wanted.tp_size = values_.tensor_parallel_degree;
  wanted.placement = values_.placement_strategy;
  return wanted;
}

}  // namespace smp::base
