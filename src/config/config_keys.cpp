// config/config_keys.cpp: adding a key is a row here and a field in smp/config.h, which has its
// default.
#include "config/config_keys.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <regex>
#include <sstream>
#include <utility>

#include "config/config_fields.h"
#include "config/needless_keys.h"
#include "smp/topology.h"

namespace smp::base {
namespace {

enum class Scope { kJob, kRank };

constexpr double kMostSeconds = 1e9;  // 30 years; more do not fit into nanoseconds
constexpr int kMostThreads = 1024;    // of a rank; a machine drowns in more of them

/// What few keys have.
struct Extras {
  const char* alias = "";
  std::vector<std::string> spellings = {};
  /// Older keys that are true or false, and what `true` of each means.
  std::vector<std::pair<std::string, std::string>> switches = {};
  const char* unit = "";
  /// What holds while the field is as empty as Config{} leaves it.
  const char* unset = "";
  Scope scope = Scope::kJob;
};

/// A value as tables print it; empty if it is no value yet.
std::string plain_text(const Json& value) {
  if (value.is_null() || value == Json::array()) return "";
  if (value.is_string()) return value.get<std::string>();
  return value.is_number_float() ? concat(value.get<double>()) : value.dump();
}

std::string appended(const std::string& text, const char* separator, const std::string& more) {
  return more.empty() ? text : text + separator + more;
}

template <class F>
ConfigKey key(const char* name, F Config::*field, Rule<typename Plain<F>::type> rule,
              const char* meaning, Extras extras = {}) {
  const std::string initial = plain_text(Field<F>::write(Config().*field));
  SMP_ASSERT(initial.empty() || *extras.unset == 0, name, " has a default: ", initial);
  const std::string unset = *extras.unset == 0 ? "not set" : extras.unset;
  ConfigKey made;
  made.name = name;
  made.alias = extras.alias;
  made.spellings = std::move(extras.spellings);
  made.switches = std::move(extras.switches);
  made.type = Field<F>::kType;
  made.unit = extras.unit;
  made.expected = appended(rule.expected, ", in ", made.unit);
  made.default_text = initial.empty() ? unset : appended(initial, " ", made.unit);
  made.same_on_all_ranks = extras.scope == Scope::kJob;
  made.meaning =
      appended(meaning, "; ", made.same_on_all_ranks ? "" : "may differ from rank to rank");
  made.store = [field, rule](Config& config, const Json& value) {
    const auto parsed = Field<F>::read(value);
    if (!parsed || !rule.holds(*parsed)) return false;
    config.*field = *parsed;
    return true;
  };
  made.load = [field](const Config& config) { return Field<F>::write(config.*field); };
  return made;
}

// A key is called as its field is.
#define SMP_KEY(field, ...) key(#field, &Config::field, __VA_ARGS__)

/// How the model is spread over ranks, and a batch over time.
std::vector<ConfigKey> pipeline_keys() {
  const Rule<std::string> placement{
      "\"cluster\", \"spread\" or a permutation of D, P and T",
      [](const std::string& value) { return !placement_letters(value).empty(); }};
  const Rule<std::string> schedule{
      "\"interleaved\", \"simple\", \"1f1b\", \"1f1b+N\", \"zero_bubble\", \"zero_bubble+N\" or "
      "\"file:PATH\"",
      [](const std::string& value) {
        static const std::regex kName(
            "interleaved|simple|(1f1b|zero_bubble)(\\+[0-9]{1,6})?|file:.+");
        return std::regex_match(value, kName);
      }};
  return {
      SMP_KEY(pipeline_parallel_degree, between(1, kMostStages),
              "number of stages the model is cut into",
              {.alias = "partitions", .unset = "what remains of the world size"}),
      SMP_KEY(tensor_parallel_degree, between(1, kMostStages),
              "ranks over which distributed modules are sliced (docs/tensor_parallelism.md)"),
      SMP_KEY(ddp, any_boolean(),
              "whether ranks beyond pipeline_parallel_degree train replicas of the model "
              "(docs/data_parallelism.md)"),
      SMP_KEY(bucket_cap_mb, between(1e-6, 1e9), "gradients that replicas add up at once",
              {.unit = "MiB"}),
      SMP_KEY(overlapping_allreduce, any_boolean(),
              "whether replicas add up gradients while the last microbatch's backward still "
              "runs (docs/data_parallelism.md)"),
      SMP_KEY(initial_values, one_of({"equal", "first"}),
              "replicas that do not start from the same values: equal refuses them, first gives "
              "all those of the first (docs/data_parallelism.md)"),
      SMP_KEY(broadcast_buffers, any_boolean(),
              "whether steps that compute gradients begin with the buffers of the first replica "
              "(docs/data_parallelism.md)"),
      SMP_KEY(shard_optimizer_state, any_boolean(),
              "whether each replica keeps the optimizer's state of its share of the parameters "
              "only (docs/data_parallelism.md)"),
      SMP_KEY(precision, one_of({"fp32", "amp", "bf16", "bf16_sr", "fp16"}),
              "types of the numbers that models are made of and compute in "
              "(docs/precision.md#the-setting)",
              {.switches = {{"bf16", "bf16"}, {"fp16", "fp16"}, {"fp16_params", "fp16"}},
               .unset = "as the program makes its models"}),
      SMP_KEY(
          stochastic_rounding, any_boolean(),
          "parameters of bfloat16 are stepped in float32 and rounded by chance, without float32 "
          "copies (docs/precision.md)"),
      SMP_KEY(master_weights, any_boolean(),
              "the optimizer keeps float32 values of parameters of bfloat16 and float16, steps "
              "these, and rounds them to the parameters (docs/precision.md)"),
      SMP_KEY(fp32_grad_accumulation, any_boolean(),
              "gradients of 16 bits are added over a step's microbatches in float32 "
              "(docs/precision.md)",
              {.alias = "_fp32_grad_accumulation"}),
      SMP_KEY(placement_strategy, placement,
              "how replicas (D), stages (P) and tensor ranks (T) map to ranks; the right-most "
              "letter varies fastest; cluster is DPT, spread is TPD"),
      SMP_KEY(optimize, one_of({"memory", "speed", "sequence"}),
              "how distributed transformer layers are cut: memory has no activation twice, "
              "speed sends less (docs/tensor_parallelism.md), sequence cuts a prescaled batch "
              "along its tokens (docs/layers.md)"),
      SMP_KEY(prescaled_batch, any_boolean(),
              "whether ranks that share distributed modules are given one batch, instead of "
              "each its own (docs/tensor_parallelism.md)",
              {.alias = "_prescaled_batch"}),
      SMP_KEY(microbatches, between(1, kMostMicrobatches),
              "slices of each batch that travel through the stages independently"),
      SMP_KEY(pipeline, schedule,
              "interleaved runs what is ready in the order of microbatches; simple runs all "
              "forwards, then all backwards; the others are in docs/schedules.md"),
      SMP_KEY(active_microbatches, between(1, kMostMicrobatches),
              "microbatches in flight at once under pipeline = interleaved; fewer need less "
              "activation memory",
              {.unset = "2 * stages + 2"}),
  };
}

/// Which stage runs which module.
std::vector<ConfigKey> plan_keys() {
  return {
      SMP_KEY(auto_partition, any_boolean(),
              "split modules that are not placed by hand automatically"),
      SMP_KEY(default_partition, between(0, kMostStages - 1),
              "stage of every module that is not placed by hand, if auto_partition is false"),
      SMP_KEY(keep_whole, any_text("names of module types, with commas between them"),
              "types of modules that run on one stage with everything below them, such as "
              "Attention"),
      SMP_KEY(checkpoint_modules, any_text("names of module types, with commas between them"),
              "types of modules whose activations are computed again instead of held, such as "
              "Attention (docs/memory.md)"),
      SMP_KEY(checkpoint_attentions, any_boolean(),
              "also each module whose type has Attention in its name (docs/memory.md)"),
      SMP_KEY(activation_checkpointing, one_of({"by_hand", "auto"}),
              "by_hand: what is marked is computed again; auto: also what it takes to fit "
              "stage_memory, with fewer microbatches in flight if that is better "
              "(docs/memory.md)"),
      SMP_KEY(offload_activations, any_boolean(),
              "what checkpointed modules keep leaves the device for the host until the backward; "
              "on CPUs without effect (docs/memory.md)"),
      SMP_KEY(activation_loading_horizon, between(0, 1'000'000),
              "with offload_activations: so many checkpointed calls before its backward a call's "
              "tensors are on their way back; 0: they come when they are needed"),
      SMP_KEY(
          plan_file, any_text("a path"),
          "a plan to use instead of making one, as in the plan.json of a run, which brings along "
          "how that run was trained (docs/plans.md#one-file-for-a-run)",
          {.alias = "partition_file"}),
      SMP_KEY(partition_strategy, one_of({"best", "tree", "contiguous", "search"}),
              "how the split is found; best is the fastest of the others in simulation"),
      SMP_KEY(memory_weight, between(0.0, 1.0),
              "weight of memory against computation: in a module's cost with partition_strategy "
              "tree or contiguous, else where a stage is nearly full (docs/partitioning.md)"),
      SMP_KEY(skip_tracing, any_boolean(),
              "split by the number of modules instead of running the model in advance"),
      SMP_KEY(trace_repeats, between(0, 1000),
              "0 prices modules by the operators they run, k > 0 modules and messages by a "
              "clock: the median of k runs"),
      SMP_KEY(trace_microbatches, between(1, kMostMicrobatches),
              "how many microbatches of the first step are looked at, if they do not all go the "
              "same way"),
      SMP_KEY(devices, any_text("names of devices, with commas between them"),
              "what the stages compute on, to price modules by: one name for all or one per "
              "stage (docs/partitioning.md)",
              {.unset = "a core each"}),
      SMP_KEY(stages_per_node, between(0, kMostStages),
              "stages of one node, for messages that cross a network; 0 is as the job runs"),
      SMP_KEY(network_ports, between(1, kMostStages),
              "network adapters of a node, dealt to its stages in turn; messages of one adapter "
              "queue"),
      SMP_KEY(network_gbit, between(1e-6, 1e6), "bandwidth of each adapter, one way",
              {.unit = "Gbit/s"}),
      SMP_KEY(stage_speeds, each_between(1e-6, 1e6, "stage"), "relative speed of each stage",
              {.unset = "all 1"}),
      SMP_KEY(stage_memory, each_between(1e-6, 1e9, "stage"),
              "memory of each stage, or one number for all; if it is set, a plan that needs "
              "more is refused",
              {.unit = "GiB", .unset = "what the machine has, shared by its ranks"}),
      SMP_KEY(plan_cache, any_text("a path"),
              "folder of plans of earlier starts; auto is the user's cache folder, off is none"),
  };
}

/// What a step computes, and who gets it.
std::vector<ConfigKey> step_keys() {
  const Rule<std::vector<double>> weights{
      "a list of finite numbers, one per microbatch", [](const std::vector<double>& values) {
        return std::all_of(values.begin(), values.end(), [](double w) { return std::isfinite(w); });
      }};
  const Rule<double> price{"0, or a number above 0",
                           [](double value) { return std::isfinite(value) && value >= 0; }};
  return {
      SMP_KEY(delayed_parameter_initialization, any_boolean(),
              "whether smp::delay_param_initialization has an effect",
              {.spellings = {"delayed_param_initialization", "delay_param_initialization"}}),
      SMP_KEY(seed, between<std::uint64_t>(0, std::numeric_limits<std::uint64_t>::max()),
              "seed of dropout masks and other random numbers of the model"),
      SMP_KEY(
          loss, one_of({"mean", "sum", "weights"}),
          "weight of each microbatch's loss: its share of the rows, 1, or loss_weights; modules "
          "that add to gradients by themselves ask smp::microbatch_weight()"),
      SMP_KEY(loss_weights, weights, "the weights for loss = weights"),
      SMP_KEY(broadcast_outputs, any_boolean(),
              "whether the outputs of a step reach every stage, or only the first"),
      SMP_KEY(price_per_hour, price,
              "price of one machine an hour, in any currency, from which programs tell what their "
              "tokens cost; 0: not known"),
  };
}

/// How ranks run, wait and talk.
std::vector<ConfigKey> runtime_keys() {
  const Rule<double> any_silence{"0, or a number from 5 to 3600", [](double value) {
                                   return value == 0 || (value >= 5 && value <= 3600);
                                 }};
  return {
      SMP_KEY(device, any_text("cpu, cuda or another name of LibTorch's"),
              "on what this rank computes; cuda: each rank of a machine takes a GPU, in turn"),
      SMP_KEY(device_collectives, one_of({"auto", "nccl", "messages"}),
              "who does the collectives of tensor-parallel ranks: NCCL, or messages between "
              "them; auto: NCCL if each of them can load it and has a GPU of its own "
              "(docs/gpus.md)"),
      SMP_KEY(transport, one_of({"auto", "mpi", "ucx", "ofi", "local"}),
              "auto: shared memory on one machine, MPI between machines; ucx or ofi: the same "
              "with UCX or libfabric between machines; mpi: MPI only; or local: all ranks in "
              "one process on one thread, for debugging"),
      SMP_KEY(lend_tensors, any_boolean(),
              "ranks that share memory lend each other large tensors instead of copying them; "
              "whoever writes first gets a copy"),
      SMP_KEY(progress_thread, any_boolean(),
              "a second thread of each rank moves tensors while the rank computes; for "
              "transport = ucx or ofi between machines, where cores are free"),
      SMP_KEY(promised_outputs, any_boolean(),
              "whether calls of modules on other ranks return before their values are there"),
      SMP_KEY(static_mode, any_boolean(),
              "whether steps that end like those before need no control messages; what is wrong "
              "at a step's very end may be told a step later"),
      SMP_KEY(fast_mode, any_boolean(),
              "with static_mode: tensors go from rank to rank without a detour through their "
              "caller, and unasked where they went in the steps before; false: through the "
              "caller"),
      SMP_KEY(fiber_stack_bytes, between<std::int64_t>(256 << 10, std::int64_t{1} << 46),
              "stack of each worker fiber; raise it if a deep module overflows it",
              {.unit = "bytes"}),
      SMP_KEY(stall_seconds, between(0.0, kMostSeconds),
              "stall after which a rank reports whom it waits for; 0 means never",
              {.unit = "seconds"}),
      SMP_KEY(abort_seconds, between(0.0, kMostSeconds),
              "stall after which all waits end with an error, and then the job; 0 means never",
              {.unit = "seconds"}),
      SMP_KEY(keep_alive_seconds, any_silence,
              "silence after which another machine counts as gone or cut off; 0 means that "
              "ranks of different machines do not watch each other",
              {.unit = "seconds"}),
      SMP_KEY(keep_alive_interface, any_text("the name of a network interface"),
              "network interface over which ranks of different machines watch each other",
              {.unset = "any", .scope = Scope::kRank}),
      SMP_KEY(idle_policy, one_of({"auto", "spin", "yield"}),
              "what a waiting rank does; auto yields where ranks outnumber cores",
              {.scope = Scope::kRank}),
      SMP_KEY(intra_op_threads, between(0, kMostThreads),
              "LibTorch threads per rank; 0 means the cores that the ranks of this machine may "
              "use, divided by their number",
              {.scope = Scope::kRank}),
  };
}

#undef SMP_KEY

std::vector<ConfigKey> make_config_keys() {
  std::vector<ConfigKey> all;
  for (const auto& keys : {pipeline_keys(), plan_keys(), step_keys(), runtime_keys()}) {
    all.insert(all.end(), keys.begin(), keys.end());
  }
  return all;
}

std::vector<FutureKey> make_future_keys() {
  return {
      {"sharded_data_parallel_degree", KeyType::kInteger, 1, "sharded data parallelism"},
      {"sdp_reduce_bucket_size", KeyType::kNumber, 500000000, "sharded data parallelism"},
      {"sdp_param_persistence_threshold", KeyType::kNumber, 1000000, "sharded data parallelism"},
      {"sdp_max_live_parameters", KeyType::kNumber, 1000000000, "sharded data parallelism"},
      {"sdp_hierarchical_allgather", KeyType::kBoolean, true, "sharded data parallelism"},
      {"sdp_gradient_clipping", KeyType::kNumber, 1.0, "sharded data parallelism"},
  };
}

template <class T>
Json parse_number(const std::string& text) {
  T value{};
  const char* end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && stopped == end ? Json(value) : Json();
}

Json parse_boolean(const std::string& text) {
  for (const char* yes : {"true", "1", "on", "yes"}) {
    if (text == yes) return true;
  }
  for (const char* no : {"false", "0", "off", "no"}) {
    if (text == no) return false;
  }
  return {};
}

Json parse_numbers(const std::string& text) {
  Json numbers = Json::array();
  std::istringstream list(text);
  for (std::string element; std::getline(list, element, ',');) {
    numbers.push_back(parse_number<double>(element));
    if (numbers.back().is_null()) return {};
  }
  return numbers;
}

}  // namespace

const std::vector<ConfigKey>& config_keys() {
  static const std::vector<ConfigKey> keys = make_config_keys();
  return keys;
}

const std::vector<FutureKey>& future_keys() {
  static const std::vector<FutureKey> keys = make_future_keys();
  return keys;
}

const ConfigKey* find_config_key(const std::string& name) {
  for (const ConfigKey& key : config_keys()) {
    if (key.name == name || (!key.alias.empty() && key.alias == name)) return &key;
    const auto& others = key.spellings;
    if (std::find(others.begin(), others.end(), name) != others.end()) return &key;
  }
  return nullptr;
}

const FutureKey* find_future_key(const std::string& name) {
  for (const FutureKey& key : future_keys()) {
    if (key.name == name) return &key;
  }
  return nullptr;
}

std::optional<ConfigSwitch> find_config_switch(const std::string& name) {
  for (const ConfigKey& key : config_keys()) {
    for (const auto& [older, value] : key.switches) {
      if (older == name) return ConfigSwitch{key.name, value};
    }
  }
  return std::nullopt;
}

std::vector<std::string> all_key_names() {
  std::vector<std::string> names;
  for (const ConfigKey& key : config_keys()) {
    names.push_back(key.name);
    if (!key.alias.empty()) names.push_back(key.alias);
    names.insert(names.end(), key.spellings.begin(), key.spellings.end());
    for (const auto& item : key.switches) names.push_back(item.first);
  }
  for (const FutureKey& key : future_keys()) names.push_back(key.name);
  for (const NeedlessKey& key : needless_keys()) names.push_back(key.name);
  return names;
}

Json value_from_text(KeyType type, const std::string& text) {
  switch (type) {
    case KeyType::kBoolean:
      return parse_boolean(text);
    case KeyType::kInteger: {
      const Json whole = parse_number<std::int64_t>(text);
      return whole.is_null() ? parse_number<std::uint64_t>(text) : whole;
    }
    case KeyType::kNumber:
      return parse_number<double>(text);
    case KeyType::kString:
      return text;
    case KeyType::kNumbers:
      return parse_numbers(text);
  }
  return {};
}

}  // namespace smp::base
