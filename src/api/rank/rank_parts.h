// api/rank/rank_parts.h: what is there before a rank is: its place in the job, its settings, and
// the channel to the others.
#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "alive/end_signals.h"
#include "alive/exit_watch.h"
#include "alive/watchdog.h"
#include "api/rank/plan_request.h"
#include "config/config.h"
#include "d2d/channel/channel.h"
#include "d2d/job/mpi_session.h"
#include "partition/plan/plan_check.h"
#include "smp/rank.h"
#include "smp/topology.h"

namespace smp {

/// In the order in which they start. Threads: the rank's.
struct RankParts {
  std::unique_ptr<base::ExitWatch> exit_watch;       // first: until this rank has ended
  std::unique_ptr<base::EndSignals> end_signals;     // then: it ends in good order
  std::unique_ptr<server::Watchdog::Session> watch;  // then: it sees MPI end
  base::ResolvedConfig config;
  partitioning::PlanFile plan_file;  ///< empty without one
  Topology topology;
  std::unique_ptr<d2d::MpiSession> mpi;      // not with ranks of one process
  std::unique_ptr<d2d::Channel> channel;     // between all ranks of the job
  c10::Device device{c10::DeviceType::CPU};  ///< on which the rank computes
  int cores = 0;  ///< of this machine, that its ranks may use; 0: as many as ranks
  bool independent_pipelines = false;  ///< StartOptions
  /// Set if this process plays rank 0 of a job that is only planned: nobody else is there.
  std::optional<PlanRequest> plan_request;

  /// Whether more ranks than cores are on this machine.
  bool oversubscribed() const { return cores > 0 && topology.local_size() > cores; }
  /// Of those that train one model together.
  Group training_group() const { return independent_pipelines ? Group::kPp : Group::kWorld; }
  /// Ranks of a group that are there to talk to: this one alone while a job is planned.
  std::vector<GlobalRank> ranks_there(Group which) const;
};

/// Returns what the plan file says that the settings name. @throws UsageError  it is none
partitioning::PlanFile plan_file_of(const base::ResolvedConfig& config);

/// The ranks of one process that a topology names as a group of `which`.
std::vector<GlobalRank> ranks_of(const Topology& topology, Group which);

/// Watches over ranks with these settings; `end_job` ends all of them.
std::unique_ptr<server::Watchdog::Session> watch_ranks(const Config& config,
                                                       std::function<void()> end_job);

}  // namespace smp
