// api/planning/show_plans.cpp: table, files, pictures.
#include "api/planning/show_plans.h"

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

#include "api/planning/cluster_machine.h"
#include "api/planning/cluster_text.h"
#include "api/planning/job_machine.h"
#include "api/rank/rank.h"
#include "api/rank/recorded_run.h"
#include "base/check.h"
#include "base/files.h"
#include "report/folder/plan_schedules.h"
#include "report/folder/run_folder.h"

namespace smp {
namespace {

/// Of the cluster that is planned for; empty if none is named.
std::string text_of_cluster(const PartitionPlan& plan) {
  auto& rank = Rank::current();
  const auto cluster = planned_cluster(rank.topology());
  return cluster ? cluster_text(*cluster, job_machine(rank), plan) : std::string();
}

void show(const PlannedModel& model, const std::string& candidates, const std::string& folder,
          const PlanRequest& request) {
  base::create_directories(folder);
  const auto run = run_record(Rank::current(), model.plan, {});
  report::write_plan(folder, model.plan, model.simulation, &run);
  std::printf("%s\n%s", model.plan.table().c_str(), text_of_cluster(model.plan).c_str());
  if (!candidates.empty()) std::printf("%s\n", candidates.c_str());
  if (!request.schedules.empty()) {
    const auto file = base::concat(folder, "/", report::kPlanFile);
    const auto table = report::schedules_table(file, request.schedules, request.microbatches);
    std::printf("%s\n", table.c_str());
  }
  for (const std::string& picture : report::draw_run(folder)) {
    std::printf("wrote %s\n", picture.c_str());
  }
  std::printf("wrote %s/%s (use it: --smp.plan_file %s/%s)\n", folder.c_str(), report::kPlanFile,
              folder.c_str(), report::kPlanFile);
}

}  // namespace

void show_plans_and_exit(const PlanRequest& request, const std::vector<PlannedModel>& models,
                         const std::vector<std::string>& candidates) {
  int status = 0;
  try {
    for (std::size_t i = 0; i < models.size(); ++i) {
      const bool alone = models.size() == 1;
      show(models[i], candidates[i],
           alone ? request.folder : base::concat(request.folder, "/model-", i + 1), request);
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    status = 1;
  }
  std::fflush(nullptr);
  // Not exit(): the program's objects are in use further up this stack.
  std::_Exit(status);
}

}  // namespace smp
