// config/config_keys.cpp: adding a key is one line here and a field in smp/config.h.
#include "config/config_keys.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <regex>
#include <sstream>

#include "config/config_fields.h"
#include "smp/topology.h"

namespace smp::base {
namespace {

enum class Scope { kJob, kRank };

constexpr double kMostSeconds = 1e9;  // 30 years; more do not fit into nanoseconds
constexpr int kMostThreads = 1024;    // of a rank; a machine drowns in more of them

template <class F>
ConfigKey key(std::string name, std::string alias, F Config::*field,
              Rule<typename Plain<F>::type> rule, std::string default_text, std::string meaning,
              Scope scope = Scope::kJob) {
  ConfigKey made{std::move(name),
                 std::move(alias),
                 Field<F>::kType,
                 rule.expected,
                 std::move(default_text),
                 std::move(meaning),
                 scope == Scope::kJob,
                 {},
                 {}};
  made.store = [field, rule](Config& config, const Json& value) {
    const auto parsed = Field<F>::read(value);
    if (!parsed || !rule.holds(*parsed)) return false;
    config.*field = *parsed;
    return true;
  };
  made.load = [field](const Config& config) { return Field<F>::write(config.*field); };
  return made;
}

/// How the model is spread over ranks, and a batch over time.
std::vector<ConfigKey> pipeline_keys() {
  const Rule<std::string> placement{
      "\"cluster\", \"spread\" or a permutation of D, P and T",
      [](const std::string& value) { return !placement_letters(value).empty(); }};
  const Rule<double> size{"a number above 0",
                          [](double value) { return std::isfinite(value) && value > 0; }};
  const Rule<std::string> schedule{
      "\"interleaved\", \"simple\", \"1f1b\", \"1f1b+N\", \"zero_bubble\", \"zero_bubble+N\" or "
      "\"file:PATH\"",
      [](const std::string& value) {
        static const std::regex kName(
            "interleaved|simple|(1f1b|zero_bubble)(\\+[0-9]{1,6})?|file:.+");
        return std::regex_match(value, kName);
      }};
  return {
      key("pipeline_parallel_degree", "partitions", &Config::pipeline_parallel_degree,
          between(1, kMostStages), "what remains of the world size",
          "number of stages the model is cut into"),
      key("tensor_parallel_degree", "", &Config::tensor_parallel_degree, between(1, kMostStages),
          "1", "ranks over which distributed modules are sliced (docs/tensor_parallelism.md)"),
      key("ddp", "", &Config::ddp, any_boolean(), "true",
          "whether ranks beyond pipeline_parallel_degree train replicas of the model "
          "(docs/data_parallelism.md)"),
      key("bucket_cap_mb", "", &Config::bucket_cap_mb, size, "25",
          "MiB of gradients that replicas add up at once"),
      key("overlapping_allreduce", "", &Config::overlapping_allreduce, any_boolean(), "true",
          "whether replicas add up gradients while the last microbatch's backward still runs "
          "(docs/data_parallelism.md)"),
      key("initial_values", "", &Config::initial_values, one_of({"equal", "first"}), "equal",
          "replicas that do not start from the same values: equal refuses them, first gives all "
          "those of the first (docs/data_parallelism.md)"),
      key("broadcast_buffers", "", &Config::broadcast_buffers, any_boolean(), "false",
          "whether steps that compute gradients begin with the buffers of the first replica "
          "(docs/data_parallelism.md)"),
      key("shard_optimizer_state", "", &Config::shard_optimizer_state, any_boolean(), "false",
          "whether each replica keeps the optimizer's state of its share of the parameters only "
          "(docs/data_parallelism.md)"),
      key("placement_strategy", "", &Config::placement_strategy, placement, "cluster",
          "how replicas (D), stages (P) and tensor ranks (T) map to ranks; the right-most letter "
          "varies fastest; cluster is DPT, spread is TPD"),
      key("optimize", "", &Config::optimize, one_of({"memory", "speed"}), "memory",
          "how distributed transformer layers are cut: memory has no activation twice, speed sends "
          "less (docs/tensor_parallelism.md)"),
      key("prescaled_batch", "_prescaled_batch", &Config::prescaled_batch, any_boolean(), "false",
          "whether ranks that share distributed modules are given one batch, instead of each its "
          "own (docs/tensor_parallelism.md)"),
      key("microbatches", "", &Config::microbatches, between(1, kMostMicrobatches), "1",
          "slices of each batch that travel through the stages independently"),
      key("pipeline", "", &Config::pipeline, schedule, "interleaved",
          "interleaved runs what is ready in the order of microbatches; simple runs all forwards, "
          "then all backwards; "
          "the others are in docs/schedules.md"),
      key("active_microbatches", "", &Config::active_microbatches, between(1, kMostMicrobatches),
          "2 * stages + 2",
          "microbatches in flight at once under pipeline = interleaved; fewer need less activation "
          "memory"),
  };
}

/// Which stage runs which module.
std::vector<ConfigKey> plan_keys() {
  const Rule<std::string> any_path{"a path", [](const std::string&) { return true; }};
  const Rule<std::string> any_types{"names of module types, with commas between them",
                                    [](const std::string&) { return true; }};
  const Rule<double> share{"a number from 0 to 1",
                           [](double value) { return value >= 0 && value <= 1; }};
  const Rule<double> size{"a number above 0",
                          [](double value) { return std::isfinite(value) && value > 0; }};
  const Rule<std::string> any_devices{"names of devices, with commas between them",
                                      [](const std::string&) { return true; }};
  return {
      key("auto_partition", "", &Config::auto_partition, any_boolean(), "true",
          "split modules that are not placed by hand automatically"),
      key("default_partition", "", &Config::default_partition, between(0, kMostStages - 1),
          "not set",
          "stage of every module that is not placed by hand, if auto_partition is false"),
      key("keep_whole", "", &Config::keep_whole, any_types, "not set",
          "types of modules that run on one stage with everything below them, such as Attention"),
      key("plan_file", "partition_file", &Config::plan_file, any_path, "not set",
          "a plan to use instead of making one, as in the plan.json of a run"),
      key("partition_strategy", "", &Config::partition_strategy,
          one_of({"best", "tree", "contiguous", "search"}), "best",
          "how the split is found; best is the fastest of the others in simulation"),
      key("memory_weight", "", &Config::memory_weight, share, "0.8",
          "weight of memory against computation in a module's cost"),
      key("skip_tracing", "", &Config::skip_tracing, any_boolean(), "false",
          "split by the number of modules instead of running the model in advance"),
      key("trace_repeats", "", &Config::trace_repeats, between(0, 1000), "0",
          "0 prices modules by the operators they run, k > 0 modules and messages by a clock: the "
          "median of k runs"),
      key("trace_microbatches", "", &Config::trace_microbatches, between(1, kMostMicrobatches), "1",
          "how many microbatches of the first step are looked at, if they do not all go the same "
          "way"),
      key("devices", "", &Config::devices, any_devices, "a core each",
          "what the stages compute on, to price modules by: one name for all or one per stage "
          "(docs/partitioning.md)"),
      key("stages_per_node", "", &Config::stages_per_node, between(0, kMostStages), "0",
          "stages of one node, for messages that cross a network; 0 is as the job runs"),
      key("network_ports", "", &Config::network_ports, between(1, kMostStages), "1",
          "network adapters of a node, dealt to its stages in turn; messages of one adapter queue"),
      key("network_gbit", "", &Config::network_gbit, size, "100",
          "Gbit/s of each adapter, one way"),
      key("stage_speeds", "", &Config::stage_speeds, each_between(1e-6, 1e6, "stage"), "all 1",
          "relative speed of each stage"),
      key("stage_memory", "", &Config::stage_memory, each_between(1e-6, 1e9, "stage"),
          "what the machine has, shared by its ranks",
          "memory of each stage in GiB, or one number for all; if it is set, a plan that needs "
          "more is refused"),
      key("plan_cache", "", &Config::plan_cache, any_path, "auto",
          "folder of plans of earlier starts; auto is the user's cache folder, off is none"),
  };
}

/// What a step computes, and who gets it.
std::vector<ConfigKey> step_keys() {
  const Rule<std::vector<double>> weights{
      "a list of finite numbers, one per microbatch", [](const std::vector<double>& values) {
        return std::all_of(values.begin(), values.end(), [](double w) { return std::isfinite(w); });
      }};
  return {
      key("delayed_parameter_initialization", "", &Config::delayed_parameter_initialization,
          any_boolean(), "true", "whether smp::delay_param_initialization has an effect"),
      key("seed", "", &Config::seed,
          between<std::uint64_t>(0, std::numeric_limits<std::uint64_t>::max()), "0",
          "seed of dropout masks and other random numbers of the model"),
      key("loss", "", &Config::loss, one_of({"mean", "sum", "weights"}), "mean",
          "weight of each microbatch's loss: its share of the rows, 1, or loss_weights"),
      key("loss_weights", "", &Config::loss_weights, weights, "not set",
          "the weights for loss = weights"),
      key("broadcast_outputs", "", &Config::broadcast_outputs, any_boolean(), "true",
          "whether the outputs of a step reach every stage, or only the first"),
  };
}

/// How ranks run, wait and talk.
std::vector<ConfigKey> runtime_keys() {
  const Rule<std::string> any_device{"cpu, cuda or another name of LibTorch's",
                                     [](const std::string&) { return true; }};
  const Rule<double> any_silence{"0, or a number from 5 to 3600", [](double value) {
                                   return value == 0 || (value >= 5 && value <= 3600);
                                 }};
  const Rule<std::string> any_interface{"the name of a network interface",
                                        [](const std::string&) { return true; }};
  return {
      key("device", "", &Config::device, any_device, "cpu",
          "on what this rank computes; cuda: each rank of a machine takes a GPU, in turn"),
      key("device_collectives", "", &Config::device_collectives,
          one_of({"auto", "nccl", "messages"}), "auto",
          "who does the collectives of tensor-parallel ranks: NCCL, or messages between them; "
          "auto: "
          "NCCL if each of them can load it and has a GPU of its own (docs/gpus.md)"),
      key("transport", "", &Config::transport, one_of({"auto", "mpi", "ucx", "ofi", "local"}),
          "auto",
          "auto: shared memory on one machine, MPI between machines; ucx or ofi: the same with UCX "
          "or libfabric between machines; mpi: MPI only; or local: all ranks in one process on one "
          "thread, for debugging"),
      key("lend_tensors", "", &Config::lend_tensors, any_boolean(), "true",
          "ranks that share memory lend each other large tensors instead of copying them; whoever "
          "writes first gets a copy"),
      key("progress_thread", "", &Config::progress_thread, any_boolean(), "false",
          "a second thread of each rank moves tensors while the rank computes; for transport = ucx "
          "or ofi between machines, where cores are free"),
      key("promised_outputs", "", &Config::promised_outputs, any_boolean(), "true",
          "whether calls of modules on other ranks return before their values are there"),
      key("static_mode", "", &Config::static_mode, any_boolean(), "false",
          "whether steps that end like those before need no control messages; "
          "what is wrong at a step's very end may be told a step later"),
      key("fast_mode", "", &Config::fast_mode, any_boolean(), "true",
          "with static_mode: tensors go from rank to rank without a detour through their caller, "
          "and unasked where they went in the steps before; false: through the caller"),
      key("fiber_stack_bytes", "", &Config::fiber_stack_bytes,
          between<std::int64_t>(256 << 10, std::int64_t{1} << 46), "1048576",
          "stack of each worker fiber; raise it if a deep module overflows it"),
      key("stall_seconds", "", &Config::stall_seconds, between(0.0, kMostSeconds), "30",
          "seconds of stall after which a rank reports whom it waits for; 0 means never"),
      key("abort_seconds", "", &Config::abort_seconds, between(0.0, kMostSeconds), "600",
          "seconds of stall after which all waits end with an error, and then the job; 0 means "
          "never"),
      key("keep_alive_seconds", "", &Config::keep_alive_seconds, any_silence, "15",
          "seconds of silence after which another machine counts as gone or cut off; 0 means that "
          "ranks of different machines do not watch each other"),
      key("keep_alive_interface", "", &Config::keep_alive_interface, any_interface, "any",
          "name of the network interface over which they do", Scope::kRank),
      key("idle_policy", "", &Config::idle_policy, one_of({"auto", "spin", "yield"}), "auto",
          "what a waiting rank does; auto yields where ranks outnumber cores", Scope::kRank),
      key("intra_op_threads", "", &Config::intra_op_threads, between(0, kMostThreads), "0",
          "LibTorch threads per rank; 0 means the cores that the ranks of this machine may use, "
          "divided by their number",
          Scope::kRank),
  };
}

std::vector<ConfigKey> make_config_keys() {
  std::vector<ConfigKey> all;
  for (const auto& keys : {pipeline_keys(), plan_keys(), step_keys(), runtime_keys()}) {
    all.insert(all.end(), keys.begin(), keys.end());
  }
  return all;
}

std::vector<FutureKey> make_future_keys() {
  const auto off = [](std::string name, std::string feature) {
    return FutureKey{std::move(name), KeyType::kBoolean, false, std::move(feature)};
  };
  return {
      {"ddp_port", KeyType::kInteger, nullptr, "a rendezvous of its own (MPI connects replicas)"},
      {"ddp_dist_backend", KeyType::kString, "auto", "a choice of backends for replicas"},
      off("horovod", "data parallelism by Horovod (ddp does it)"),
      off("deterministic_server", "one order of requests in all replicas"),
      off("fp16_params", "parameters of 16 bits beside those of the optimizer"),
      off("checkpoint_attentions", "activation checkpointing"),
      off("_match_weights", "a comparison of distributed modules with those that they replace"),
      off("load_partition", "re-using a plan by this key (plan_file does it)"),
      {"contiguous", KeyType::kBoolean, true,
       "choosing contiguity by this key (partition_strategy does it)"},
      off("offload_activations", "activation offloading"),
      {"activation_loading_horizon", KeyType::kInteger, 4, "activation offloading"},
      off("fp16", "mixed precision"),
      off("bf16", "mixed precision"),
      off("_fp32_grad_accumulation", "mixed precision"),
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
  }
  return nullptr;
}

const FutureKey* find_future_key(const std::string& name) {
  for (const FutureKey& key : future_keys()) {
    if (key.name == name) return &key;
  }
  return nullptr;
}

std::vector<std::string> all_key_names() {
  std::vector<std::string> names;
  for (const ConfigKey& key : config_keys()) {
    names.push_back(key.name);
    if (!key.alias.empty()) names.push_back(key.alias);
  }
  for (const FutureKey& key : future_keys()) names.push_back(key.name);
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

std::string config_keys_markdown() {
  std::ostringstream page;
  page << "| key | value | default | meaning |\n| --- | --- | --- | --- |\n";
  for (const ConfigKey& key : config_keys()) {
    page << "| `" << key.name << "`" << (key.alias.empty() ? "" : ", `" + key.alias + "`") << " | "
         << key.expected << " | " << key.default_text << " | " << key.meaning << " |\n";
  }
  page << "\n## Known, not yet available\n\n| key | only accepted value | comes with |\n| --- | "
          "--- | --- |\n";
  for (const FutureKey& key : future_keys()) {
    page << "| `" << key.name << "` | "
         << (key.default_value.is_null() ? "none" : key.default_value.dump()) << " | "
         << key.feature << " |\n";
  }
  return page.str();
}

}  // namespace smp::base
