// api/rank/runtime.h: the parts of one rank, in the order in which they start. The running fiber's
// runtime is the only global state of the library.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "alive/end_signals.h"
#include "alive/watchdog.h"
#include "api/optimizer/optimizer_shards.h"
#include "api/rank/plan_request.h"
#include "api/rank/shared_warnings.h"
#include "api/step/replica_gradients.h"
#include "api/step/step_facts.h"
#include "api/step/step_kinds.h"
#include "base/fiber_local.h"
#include "config/config.h"
#include "d2d/collectives/communicator.h"
#include "d2d/job/mpi_session.h"
#include "deferred/deferral.h"
#include "schedule/schedule.h"
#include "schedule/step_trace.h"
#include "server/engine/module_server.h"
#include "smp/topology.h"
#include "tp/group/tensor_parallel.h"

namespace smp {

class DistributedModelBase;
class Join;

/// The parts of one rank. Threads: the rank's.
class Runtime {
 public:
  struct Parts {
    std::unique_ptr<base::EndSignals> end_signals;     // first: this rank ends in good order
    std::unique_ptr<server::Watchdog::Session> watch;  // then: it sees MPI end
    base::ResolvedConfig config;
    Topology topology;
    std::unique_ptr<d2d::MpiSession> mpi;   // not with ranks of one process
    std::unique_ptr<d2d::Channel> channel;  // between all ranks of the job
    c10::Device device{c10::DeviceType::CPU};
    int cores = 0;  ///< cores of this machine that its ranks may use; 0: as many as ranks
    bool independent_pipelines = false;  ///< see StartOptions
    /// Set if this process plays rank 0 of a job that is only planned, whose other ranks do not
    /// exist.
    std::optional<PlanRequest> plan_request;

    /// True if there are more ranks than cores on this machine.
    bool oversubscribed() const { return cores > 0 && topology.local_size() > cores; }
  };
  /// Makes this the rank of the calling fiber, and checks that all ranks agree.
  explicit Runtime(Parts parts);
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  /// Watches over ranks with these settings; `end_job` ends all of them.
  static std::unique_ptr<server::Watchdog::Session> watch(const Config& config,
                                                          std::function<void()> end_job);
  /// Returns the runtime of the running fiber. @throws UsageError if there is none.
  static Runtime& current();
  static Runtime* find_current() noexcept;

  const Topology& topology() const noexcept { return parts_.topology; }
  PpRank pp_rank() const noexcept { return server_.rank(); }
  /// True if this is the stage on which bodies run and plans are made.
  bool is_first_stage() const noexcept { return pp_rank().value() == 0; }
  const base::ResolvedConfig& resolved_config() const noexcept { return parts_.config; }
  const Config& config() const noexcept { return parts_.config.values(); }
  /// The device on which this rank computes.
  c10::Device device() const noexcept { return parts_.device; }
  const std::optional<PlanRequest>& plan_request() const noexcept { return parts_.plan_request; }
  /// The cores of this machine that its ranks may use; 0: as many as ranks.
  int cores() const noexcept { return parts_.cores; }

  server::ModuleServer& server() noexcept { return server_; }
  /// The counters of what this rank has sent and received so far.
  const d2d::ChannelCounters& traffic() const noexcept { return parts_.channel->counters(); }
  const d2d::Routes& routes() const noexcept { return parts_.channel->routes(); }
  const schedule::Schedule& schedule() const noexcept { return *schedule_; }
  /// The schedule in which a microbatch starts when the one before has ended.
  const schedule::Schedule& one_at_a_time() const noexcept { return *one_at_a_time_; }
  /// Returns the ranks of the group that can be talked to: all, or this one alone while planning.
  d2d::Communicator communicator(Group which);
  /// Returns the ranks that train one model together, the first stage of the first replica first.
  d2d::Communicator learners() {
    return communicator(parts_.independent_pipelines ? Group::kPp : Group::kWorld);
  }
  /// True if plans are made on this rank.
  bool is_first_learner() { return learners().rank() == 0; }
  /// Returns the ranks that run the same stage on other samples, by dp_rank.
  d2d::Communicator replicas() { return several(Group::kDp, num_replicas()); }
  /// Returns those replicas() that also hold the same slices of distributed modules, by rdp_rank.
  d2d::Communicator slice_replicas() {
    return several(Group::kRdp, num_replicas() > 1 ? topology().rdp_size() : 1);
  }
  /// Returns those replicas() that share distributed modules with this rank, by tp_rank.
  d2d::Communicator slice_holders() {
    return several(Group::kTp, num_replicas() > 1 ? topology().tp_size() : 1);
  }
  /// Returns the number of lanes of collectives that are not forgotten; for tests.
  std::size_t lanes() const noexcept { return communicators_.lanes(); }
  /// Forgets what the modules of the running step did with other ranks, because the step is over.
  void end_meetings() { communicators_.end_epoch(static_cast<std::uint64_t>(server_.steps())); }
  int num_replicas() const noexcept;
  /// Returns how many ranks of a stage are given the same batch: those of a TP_GROUP if it is
  /// prescaled, else one.
  int ranks_of_batch() const noexcept {
    return config().prescaled_batch && num_replicas() > 1 ? topology().tp_size() : 1;
  }
  /// True if this rank and `other`, which runs the same stage, are given the same batch.
  bool has_batch_of(GlobalRank other) const {
    return config().prescaled_batch &&
           topology().coordinates(other.value()).rdp == topology().rdp_rank();
  }
  /// Returns the number of this rank's batch among those of the job.
  int batch_number() const {
    return config().prescaled_batch ? topology().rdp_rank() : topology().dp_rank();
  }
  /// The number of steps with gradients that this rank has begun among its replicas.
  std::int64_t shared_steps() const noexcept { return shared_steps_; }
  void count_shared_step() noexcept { ++shared_steps_; }
  /// The number of steps of the jobs that this one continues; negative if set_step_count() set less
  /// than this rank had run.
  std::int64_t earlier_steps() const noexcept { return earlier_steps_; }
  void set_earlier_steps(std::int64_t count) noexcept { earlier_steps_ = count; }
  /// The running smp::Join, if replicas may have different numbers of batches, or nullptr; not
  /// owned.
  const Join* join() const noexcept { return join_; }
  void set_join(const Join* join) noexcept { join_ = join; }
  ReplicaGradients& replica_gradients() noexcept { return replica_gradients_; }
  OptimizerShards& optimizer_shards() noexcept { return optimizer_shards_; }
  /// Returns the ranks that together keep the optimizer state of this pipeline's parameters.
  d2d::Communicator state_keepers() {
    return optimizer_shards_.active() ? learners() : communicator(Group::kPp);
  }
  /// The number of bytes of gradients or values that travel together.
  std::int64_t bucket_bytes() const noexcept {
    return static_cast<std::int64_t>(config().bucket_cap_mb * (1 << 20));
  }
  /// Returns a communicator of any ranks of the job, which all ask for it.
  d2d::Communicator communicator(std::vector<GlobalRank> members) {
    return communicators_.group(d2d::Members(std::move(members)));
  }

  /// The engine that serves code inside of bodies: the server's, or another one during a trial run.
  server::StepEngine& engine() noexcept { return trial_ ? *trial_ : server_.engine(); }
  /// Sets the engine of a trial run, while the body of the first step runs in advance; nullptr ends
  /// it.
  void set_trial(server::StepEngine* trial) noexcept;
  bool is_tracing() const noexcept { return trial_ != nullptr; }
  /// True if the body of a step runs, or is traced.
  bool in_step() const noexcept { return server_.in_step() || is_tracing(); }

  /// True if an error that all ranks of the job throw alike is printed by another rank.
  bool prints_less() const noexcept;
  /// Returns the rank that prints such errors.
  GlobalRank speaker() const;
  /// Runs `check`, whose errors every rank of the job throws alike; one rank prints them.
  void say_once(const std::function<void()>& check) const;

  /// Returns a flag that outlives this session, and is false once the session has ended.
  std::shared_ptr<const bool> alive() const noexcept { return alive_; }
  /// The models of this session, in order of construction.
  std::vector<DistributedModelBase*>& models() noexcept { return models_; }
  /// The facts about what this rank does beside its models.
  StepFacts& facts() noexcept { return facts_; }
  SharedWarnings& warnings() noexcept { return warnings_; }
  /// The kinds of steps that were seen; on pp_rank 0.
  StepKinds& step_kinds() noexcept { return step_kinds_; }
  /// The trace of the last step as this rank saw it.
  schedule::StepTrace& last_trace() noexcept { return last_trace_; }

 private:
  /// Returns the ranks of a group; this one alone if `count` is 1.
  d2d::Communicator several(Group which, int count) {
    return count > 1 ? communicator(which) : communicator({GlobalRank(topology().rank())});
  }
  void connect_devices();
  void fail_meetings(std::int64_t step, const std::string& why) noexcept;

  /// Counts the sessions of this process, for messages.
  struct Counted {
    Counted() noexcept;
    ~Counted();
  };

  Parts parts_;
  Counted counted_;
  base::FiberLocalScope<Runtime> current_;
  std::optional<deferred::Eager> eager_;  // where delayed initialisation is switched off
  d2d::Communicators communicators_;
  /// Gives tensor parallelism the places of calls, which the server knows; `server` is set once
  /// there is one.
  class Places final : public module::CallPlaces {
   public:
    std::optional<module::CallPlace> next() override { return server->places().next(); }
    server::ModuleServer* server = nullptr;
  } places_;
  tp::TensorParallel tensor_parallel_;
  base::FiberLocalScope<tp::TensorParallel> current_group_;  // workers of the server inherit it
  std::unique_ptr<schedule::Schedule> schedule_;
  std::unique_ptr<schedule::Schedule> one_at_a_time_ = schedule::make_interleaved(1);
  server::ModuleServer server_;
  std::vector<DistributedModelBase*> models_;
  ReplicaGradients replica_gradients_{*this};
  OptimizerShards optimizer_shards_{*this};
  std::int64_t shared_steps_ = 0;
  std::int64_t earlier_steps_ = 0;
  const Join* join_ = nullptr;
  StepFacts facts_;
  SharedWarnings warnings_;
  StepKinds step_kinds_;
  server::StepEngine* trial_ = nullptr;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  schedule::StepTrace last_trace_;
};

/// Returns the ranks that `topology` names as this rank's group `which`.
std::vector<GlobalRank> ranks_of(const Topology& topology, Group which);

/// Checks that `value` is equal on all members of `ranks`.
/// @throws UsageError  on every rank: it is not; names the first rank that differs.
void require_equal(const d2d::Communicator& ranks, std::uint64_t value, const char* what,
                   const char* remedy);

}  // namespace smp
