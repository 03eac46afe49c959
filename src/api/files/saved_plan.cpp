// api/files/saved_plan.cpp: plan files that programs ask for.
#include "smp/program/saved_plan.h"

#include "api/planning/plan_decision.h"
#include "api/rank/public_call.h"
#include "api/rank/rank.h"
#include "api/rank/recorded_run.h"
#include "base/files.h"
#include "partition/plan/run_record.h"
#include "smp/distributed_model.h"

namespace smp {

void save_plan(const DistributedModelBase& model, const std::string& path) {
  const PublicCall call("smp::save_plan");
  const auto& rank = Rank::current();
  const auto& plan = model.plan();
  const auto routes = gather_routes(rank);
  static_cast<void>(decided_by_first_rank(rank, [&] {
    const auto run = run_record(rank, plan, routes);
    base::write_file(path, partitioning::plan_text(plan, run));
    return std::vector<std::string>();
  }));
}

}  // namespace smp
