// api/session/session.cpp: starting a rank under MPI, and the rank functions.
#include "smp/session.h"

#include <ATen/Parallel.h>
#include <ATen/Version.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "alive/common_errors.h"
#include "alive/pulse.h"
#include "api/rank/agreement.h"
#include "api/rank/computing.h"
#include "api/rank/rank_device.h"
#include "api/rank/recorded_run.h"
#include "api/rank/shared_warnings.h"
#include "api/session/end_at_exit.h"
#include "api/session/neuron_start.h"
#include "api/session/rank_session.h"
#include "api/session/start.h"
#include "base/check.h"
#include "base/log.h"
#include "base/machine/cores.h"
#include "d2d/job/job_wires.h"
#include "d2d/tensors/tensor_count.h"
#include "d2d/wire/wire.h"
#include "d2d/wires/local/local_wire.h"
#include "module/registry.h"
#include "server/ends/last_words.h"
#include "server/protocol/exception_text.h"
#include "smp/version.h"

namespace smp {
namespace {

/// Checks that LibTorch's headers and library are of one version, because objects cross between
/// them.
void check_torch_version() {
  const auto settings = at::show_config();
  const std::string key = "TORCH_VERSION=";
  const auto found = settings.find(key);
  if (found == std::string::npos) return;
  const auto start = found + key.size();
  const auto loaded = settings.substr(start, settings.find_first_of(", \n", start) - start);
  const std::string built = std::string(SMP_TORCH_VERSION).substr(0, loaded.size());
  SMP_REQUIRE_AS(UnsupportedError, loaded == built, "smp was built with LibTorch ",
                 SMP_TORCH_VERSION, ", but LibTorch ", loaded,
                 " is loaded; build again, or put the right one first in the library path");
}

base::ResolvedConfig resolve(int& argc, char** argv, const Config& config, int world_size) {
  base::ConfigInput input;
  input.code = config;
  input.flags = base::take_flags(argc, argv);
  input.environment = base::environment_settings();
  input.world_size = world_size;
  return base::resolve_config(input);
}

/// Starts the progress thread if the settings say so, and the wires allow it.
void start_progress_thread(d2d::Channel& channel, const Config& config) {
  if (!config.progress_thread || channel.routes().wires().bound_to_one_thread() != nullptr) return;
  channel.move_beside_rank();
}

void warn_of_progress_thread(const Rank& rank, SharedWarnings& warnings) {
  const auto* const bound = rank.channel().routes().wires().bound_to_one_thread();
  if (!rank.config().progress_thread || bound == nullptr) return;
  warnings.note(base::concat(
      "configuration: progress_thread = true has no effect: only a rank's own thread may call ",
      bound->name(), ", over which it reaches others (between machines, transport = ucx or ofi)"));
}

void warn_of_settings(const Rank& rank, SharedWarnings& warnings) {
  warn_of_progress_thread(rank, warnings);
  for (const std::string& warning : rank.parts().config.warnings()) {
    warnings.note("configuration: " + warning);
  }
  warnings.meet(rank.groups().of(Group::kWorld));
}

void set_idle_policy(const Config& config, bool oversubscribed) {
  fiber::IdlePolicy policy;
  policy.oversubscribed =
      config.idle_policy == "yield" || (config.idle_policy == "auto" && oversubscribed);
  fiber::Scheduler::install().set_idle_policy(policy);
}

/// Returns the number of cores that the ranks of this machine have together. A container may have
/// some of the cores or a share of their time only, and mpirun may bind each rank to cores of its
/// own.
int cores_of_ranks(const d2d::MpiSession& mpi) {
  const auto all = mpi.all_gather(base::own_cores());
  const auto& machines = mpi.machine_of_rank();
  std::vector<std::string> here;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (machines[rank] == machines[mpi.rank().index()]) here.push_back(all[rank]);
  }
  const int cores = base::num_cores(here);
  const double processors = base::processors_of_cgroup();
  return processors > 0 ? std::clamp(static_cast<int>(processors), 1, cores) : cores;
}

/// Shares the cores among the ranks of a machine, unless the user decided otherwise.
/// @param cores  number of cores that the ranks have together
void set_intra_op_threads(const Config& config, int cores, int local_size) {
  if (config.intra_op_threads > 0) {
    at::set_num_threads(config.intra_op_threads);
  } else if (std::getenv("OMP_NUM_THREADS") == nullptr) {
    const int share = std::max(1, cores / std::max(1, local_size));
    at::set_num_threads(std::min(share, base::num_cores({base::own_cores()})));
  }
}

/// What ranks compute with other numbers of threads has other bits.
void warn_of_threads(const d2d::MpiSession& mpi) {
  std::vector<int> threads;
  for (const auto& text : mpi.all_gather(std::to_string(at::get_num_threads()))) {
    threads.push_back(std::stoi(text));
  }
  const auto warning = warning_of_threads(threads);
  if (mpi.rank() == GlobalRank(0) && !warning.empty()) {
    base::log(base::LogLevel::kWarning, warning);
  }
}

void refuse_second_session() {
  SMP_REQUIRE(Rank::find_current() == nullptr,
              "smp::init was called twice on this rank; keep the session of the first call alive");
}

/// Runs `prepare` on every rank. If it fails on any, every rank throws, and one prints it: nobody
/// is left waiting for a rank that did not start.
void prepare_together(const d2d::MpiSession& mpi, const std::function<void()>& prepare) {
  std::exception_ptr error;
  std::string text;
  try {
    prepare();
  } catch (...) {
    error = std::current_exception();
    text = server::text_of(error);
  }
  const auto texts = mpi.all_gather(text);
  const auto first = std::find_if(texts.begin(), texts.end(),
                                  [](const std::string& problem) { return !problem.empty(); });
  if (first == texts.end()) return;
  if (error) {
    const auto own = texts.begin() + mpi.rank().value();
    const auto reporting = std::find(texts.begin(), own, text);
    server::leave_to_another_rank(text, GlobalRank(static_cast<int>(reporting - texts.begin())));
    std::rethrow_exception(error);
  }
  const auto rank = static_cast<int>(first - texts.begin());
  const auto other = base::concat("rank ", rank, " could not start: ", *first);
  server::leave_to_another_rank(other, GlobalRank(rank));
  throw UsageError(other);
}

/// Those that must be equal: how ranks are connected is one of them.
Facts settings_of(const base::ResolvedConfig& config, const RecordedRun& run) {
  Facts settings;
  for (const auto& row : config.shared_rows()) {
    settings.push_back({row.key, row.value, row.origin});
  }
  settings.push_back({"the run in plan_file, which every rank reads", identity_of(run)});
  const auto neuron = asked_neuron();
  settings.push_back(
      {"memory of Neuron cores (smp::NeuronTensors)", neuron ? neuron->name() : "none"});
  return settings;
}

std::vector<GlobalRank> all_ranks(const d2d::MpiSession& mpi) {
  std::vector<GlobalRank> ranks;
  for (int rank = 0; rank < mpi.size(); ++rank) ranks.emplace_back(rank);
  return ranks;
}

/// srun without a matching --mpi starts as many jobs of one rank as there are tasks.
void warn_of_lone_ranks(int size) {
  const char* const tasks = std::getenv("SLURM_NTASKS");
  const char* const task = std::getenv("SLURM_PROCID");
  if (size != 1 || tasks == nullptr || task == nullptr) return;
  if (std::atoi(tasks) <= 1 || std::atoi(task) != 0) return;
  base::log(base::LogLevel::kWarning, "Slurm has ", tasks,
            " tasks here, but MPI started this process as a job of one rank: start the program "
            "with mpirun, or with `srun --mpi=pmix` (`srun --mpi=list` shows what there is)");
}

/// Makes this rank visible to others without its help from now on, and them to it.
void show_pulse(const d2d::MpiSession& mpi) {
  const int rank = mpi.rank().value();
  base::own_pulse().rank = rank;
  if (base::ranks_on_board() > 0) return;  // of an earlier session
  auto memory = mpi.share_memory(base::PulseBoard::bytes_for(mpi.size()));
  if (memory) base::PulseBoard::join(base::PulseBoard(std::move(*memory)), rank);
}

/// Logs once, from rank 0, the paths that its messages take.
void tell_paths(const d2d::Routes& routes, c10::Device device) {
  if (routes.rank() != GlobalRank(0)) return;
  const auto memory = d2d::memory_kind(device.type()).value_or(d2d::MemoryKind::kHost);
  for (const auto& [path, peers] : routes.paths(memory)) {
    base::log(base::LogLevel::kInfo, "rank 0 to ", names_of(peers), " over ", path);
  }
}

/// Returns the routes to all ranks.
/// @param neuron    nullptr: none
/// @param as_in     a run whose routes these shall be
/// @param warnings  gets those of this rank, for when all meet
d2d::Routes routes_of(const d2d::MpiSession& mpi, const Config& config, c10::Device device,
                      const NeuronStart* neuron, const RecordedRun& as_in,
                      std::vector<std::string>& warnings) {
  d2d::TensorCount::install();  // below the allocator whose memory is lent
  auto options = d2d::route_options(config.transport, config.lend_tensors);
  options.device = device;
  options.neuron = neuron == nullptr ? nullptr : &neuron->end();
  options.warn = [&](const std::string& text) { warnings.push_back(text); };
  options.keep_alive = static_cast<base::Nanoseconds>(config.keep_alive_seconds * base::kSecond);
  options.keep_alive_interface = config.keep_alive_interface;
  if (as_in) keep_to_routes(options, *as_in, mpi.size());
  return d2d::fastest_routes(mpi, options);
}

}  // namespace

Session::Session(std::unique_ptr<RankSession> session) : session_(std::move(session)) {
  end_at_exit(session_.get(), this);
}
Session::Session(Session&& other) noexcept : session_(std::move(other.session_)) {
  end_at_exit(session_.get(), this);
}
Session::~Session() {
  if (!session_) return;
  if (session_->is_own()) {
    end_at_exit(nullptr, nullptr);
  } else {
    static_cast<void>(session_.release());
  }
}
const Topology& Session::topology() const noexcept { return session_->rank().topology(); }
const Config& Session::config() const noexcept { return session_->rank().config(); }

namespace {

/// Starts rank 0 of a job whose other ranks do not exist: it gets as far as the plan.
Session start_planning(int& argc, char** argv, const Config& config, const PlanRequest& request) {
  base::set_log_rank(0);
  RankParts parts;
  parts.config = resolve(argc, argv, config, request.ranks);
  parts.plan_file = plan_file_of(parts.config);
  parts.topology = Topology(parts.config.arrangement(), 0);
  parts.channel = std::make_unique<d2d::Channel>(
      std::make_unique<d2d::LocalWire>(std::make_shared<d2d::LocalHub>(1), GlobalRank(0)));
  parts.plan_request = request;
  return Session(std::make_unique<RankSession>(std::move(parts)));
}

/// Takes the settings, the device and the plan file that they name; all ranks give the same.
/// Returns how the run of the plan file was made.
RecordedRun read_settings(RankParts& parts, int& argc, char** argv, const Config& config) {
  prepare_together(*parts.mpi, [&] {
    check_torch_version();
    module::require_distinct_calls();
    parts.config = resolve(argc, argv, config, parts.mpi->size());
    parts.device = take_device(parts.config.values().device, parts.mpi->local_rank());
    SMP_REQUIRE(parts.config.values().transport != "local", "transport \"",
                parts.config.values().transport,
                "\": ranks of one process start with smp::run_local, not with smp::init");
  });
  RecordedRun as_in;
  prepare_together(*parts.mpi, [&] {
    as_in = recorded_run(parts.config);
    parts.plan_file = plan_file_of(parts.config);
  });
  prepare_together(*parts.mpi, [&] {
    require_same([&](const std::string& own) { return parts.mpi->all_gather(own); },
                 all_ranks(*parts.mpi), settings_of(parts.config, as_in),
                 "the settings of the ranks",
                 "give every rank the same flags, environment and configuration file");
  });
  return as_in;
}

}  // namespace

Session init(int& argc, char** argv, const Config& config) { return start(argc, argv, config, {}); }

Session start(int& argc, char** argv, const Config& config, const StartOptions& options) {
  server::explain_uncaught_exceptions();
  server::explain_faults();
  refuse_second_session();
  fiber::Scheduler::install();
  if (const auto request = plan_request()) {
    check_torch_version();
    return start_planning(argc, argv, config, *request);
  }
  const auto neuron = asked_neuron();  // ends after the parts
  RankParts parts;
  parts.independent_pipelines = options.independent_pipelines;
  parts.mpi = std::make_unique<d2d::MpiSession>();
  const auto rank = parts.mpi->rank().value();
  base::set_log_rank(rank);
  show_pulse(*parts.mpi);
  parts.end_signals = std::make_unique<base::EndSignals>();
  parts.exit_watch = std::make_unique<base::ExitWatch>();
  const auto as_in = read_settings(parts, argc, argv, config);
  warn_of_lone_ranks(parts.mpi->size());
  if (rank == 0) warn_of_other_ranks(as_in, parts.config.values().plan_file, parts.mpi->size());
  parts.watch = watch_ranks(parts.config.values(), [] { d2d::MpiSession::abort_job(1); });
  auto arrangement = parts.config.arrangement();
  arrangement.machine_of_rank = parts.mpi->machine_of_rank();
  parts.topology = Topology(arrangement, rank);
  parts.cores = cores_of_ranks(*parts.mpi);
  set_idle_policy(parts.config.values(), parts.oversubscribed());
  set_intra_op_threads(parts.config.values(), parts.cores, parts.mpi->local_size());
  warn_of_threads(*parts.mpi);
  if (neuron) prepare_together(*parts.mpi, [&] { neuron->start(*parts.mpi, parts.device); });
  std::vector<std::string> of_routes;
  parts.channel = std::make_unique<d2d::Channel>(
      routes_of(*parts.mpi, parts.config.values(), parts.device, neuron.get(), as_in, of_routes));
  prepare_together(*parts.mpi, [&] {
    if (!as_in) return;
    require_routes(parts.channel->routes(), parts.device, *as_in, parts.config.values().plan_file);
  });
  tell_paths(parts.channel->routes(), memory_device(parts.device));
  start_progress_thread(*parts.channel, parts.config.values());
  auto session = std::make_unique<RankSession>(std::move(parts), neuron);
  for (auto& text : of_routes) session->warnings().note(std::move(text));
  warn_of_settings(session->rank(), session->warnings());
  base::forgive_failure();  // of a start before
  return Session(std::move(session));
}

bool is_planning() { return Rank::current().parts().plan_request.has_value(); }

bool is_initialized() noexcept { return Rank::find_current() != nullptr; }

int rank() { return Rank::current().topology().rank(); }
int size() { return Rank::current().topology().size(); }
int local_rank() { return Rank::current().topology().local_rank(); }
at::Device device() { return Rank::current().parts().device; }
int local_size() { return Rank::current().topology().local_size(); }
int pp_rank() { return Rank::current().topology().pp_rank(); }
int pp_size() { return Rank::current().topology().pp_size(); }
int tp_rank() { return Rank::current().topology().tp_rank(); }
int tp_size() { return Rank::current().topology().tp_size(); }
int dp_rank() { return Rank::current().topology().dp_rank(); }
int dp_size() { return Rank::current().topology().dp_size(); }
int rdp_rank() { return Rank::current().topology().rdp_rank(); }
int rdp_size() { return Rank::current().topology().rdp_size(); }
DataShard data_shard() {
  const auto& own = Rank::current();
  const auto& topology = own.topology();
  const bool same = own.config().prescaled_batch;
  return {own.groups().batch_number(), same ? topology.rdp_size() : topology.dp_size()};
}
int mp_rank() { return Rank::current().topology().mp_rank(); }
int mp_size() { return Rank::current().topology().mp_size(); }
std::vector<int> group(Group which) { return Rank::current().topology().group(which); }
int num_microbatches() { return Rank::current().config().microbatches; }
int current_microbatch() { return Rank::current().engine().current_microbatch(); }

}  // namespace smp
