// api/rank/recorded_run.h: how this run trains, as a plan file holds it, and back.
#pragma once

#include <c10/core/Device.h>

#include <optional>
#include <string>
#include <vector>

#include "config/config.h"
#include "d2d/channel/route.h"
#include "d2d/job/job_wires.h"
#include "partition/plan/run_record.h"

namespace smp {

class Rank;

/// Returns the routes between all ranks that train together, on each of them; none of ranks of one
/// process, or while a job is planned. Collective.
[[nodiscard]] std::vector<partitioning::RunRecord::Route> gather_routes(const Rank& rank);

/// Returns how the session of `rank` trains.
/// @param plan    of a model of the session
/// @param routes  as gather_routes()
[[nodiscard]] partitioning::RunRecord run_record(
    const Rank& rank, const PartitionPlan& plan,
    std::vector<partitioning::RunRecord::Route> routes);

/// A run that the session shall repeat, if its plan_file holds one.
using RecordedRun = std::optional<partitioning::RunRecord>;

/// Returns that of the plan file which the settings name. @throws UsageError  it is broken
[[nodiscard]] RecordedRun recorded_run(const base::ResolvedConfig& config);

/// Returns what must be equal of a record on all ranks: each may have another file of that name, or
/// none.
[[nodiscard]] std::string identity_of(const RecordedRun& run);
/// Says that the routes in `file` are not looked at, where its run was of another number of ranks
/// than `ranks`: they say nothing of these.
void warn_of_other_ranks(const RecordedRun& run, const std::string& file, int ranks);

/// Makes `options` take no path that no route of the run takes. Nothing changes if it was of
/// another number of ranks than `ranks`, whose routes say nothing of these.
void keep_to_routes(d2d::RouteOptions& options, const partitioning::RunRecord& run, int ranks);
/// Requires that tensors to each peer go as they did in the run; not of another number of ranks.
/// @param device  on which this rank computes
/// @param file    that holds the record
/// @throws UsageError  they would not; names ranks, both routes and what to do
void require_routes(const d2d::Routes& routes, c10::Device device,
                    const partitioning::RunRecord& run, const std::string& file);

}  // namespace smp
