// api/runtime.h: the parts of one rank, in the order in which they start (§4.16: no other state).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "api/plan_request.h"
#include "base/config.h"
#include "d2d/mpi_session.h"
#include "d2d/transport.h"
#include "schedule/schedule.h"
#include "server/module_server.h"
#include "smp/topology.h"

namespace smp {

class DistributedModelBase;
class TrialRun;

/// Threads: the rank's.
class Runtime {
 public:
  struct Parts {
    base::ResolvedConfig config;
    Topology topology;
    std::unique_ptr<d2d::MpiSession> mpi;  // not with ranks of one process
    std::unique_ptr<d2d::Transport> transport;
    int cores = 0;  ///< of this machine; 0: as many as ranks
    /// Set if this process plays pp_rank 0 of a job that is only planned: nobody else is there.
    std::optional<PlanRequest> plan_request;

    /// Whether more ranks than cores are on this machine.
    bool oversubscribed() const { return cores > 0 && topology.local_size() > cores; }
  };
  /// Makes this the rank of the calling fiber, and checks that all ranks agree.
  explicit Runtime(Parts parts);
  ~Runtime();

  /// Of the running fiber. @throws UsageError if there is none.
  static Runtime& current();
  static Runtime* find_current() noexcept;

  const Topology& topology() const noexcept { return parts_.topology; }
  const Config& config() const noexcept { return parts_.config.values(); }
  const base::ResolvedConfig& resolved_config() const noexcept { return parts_.config; }
  server::ModuleServer& server() noexcept { return server_; }
  const schedule::Schedule& schedule() const noexcept { return *schedule_; }

  /// Of this machine; 0: as many as ranks.
  int cores() const noexcept { return parts_.cores; }

  /// What runs the body of the first step in advance, meanwhile; else nullptr.
  TrialRun*& trial() noexcept { return trial_; }
  /// Whether the body of a step runs, or is traced.
  bool in_step() const noexcept { return server_.in_step() || trial_ != nullptr; }

  /// Models of this session, in order of construction.
  std::vector<DistributedModelBase*>& models() noexcept { return models_; }
  /// The last step as this rank saw it.
  base::StepTrace& last_trace() noexcept { return last_trace_; }
  /// Weights of the running step's microbatches, on pp_rank 0.
  std::vector<double>& loss_weights() noexcept { return loss_weights_; }

  /// Throws UsageError, on every rank and naming the first that differs, unless `value` is equal on
  /// all pp ranks.
  void require_equal(std::uint64_t value, const char* what, const char* remedy);
  /// Ranks that are there to talk to: all stages, or this one alone while planning.
  std::vector<int> pp_ranks() const;
  std::vector<int> members(Group which) const;
  const std::optional<PlanRequest>& plan_request() const noexcept { return parts_.plan_request; }

 private:
  Parts parts_;
  std::unique_ptr<schedule::Schedule> schedule_;
  server::ModuleServer server_;
  std::vector<DistributedModelBase*> models_;
  TrialRun* trial_ = nullptr;
  base::StepTrace last_trace_;
  std::vector<double> loss_weights_;
};

}  // namespace smp
