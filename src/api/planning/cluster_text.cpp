// api/planning/cluster_text.cpp: see the header.
#include "api/planning/cluster_text.h"

#include <algorithm>
#include <cstdio>

#include "base/check.h"

namespace smp {
namespace {

/// "3.17", with three digits.
std::string three_digits(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g", value);
  return text;
}

std::string ring_text(const char* what, int members, const simulate::Machine::Link& link) {
  if (members == 1) return {};
  return base::concat(what, ": rings of ", members, ", ",
                      three_digits(link.bytes_per_second * 1e-9), " GB/s a rank\n");
}

/// Gradients are summed when a stage has done its work; that of the most is taken to be the last.
double sum_seconds(const simulate::Machine& machine, const PlanSummary& summary) {
  double most = 0;
  for (const auto& stage : summary.stages) {
    most = std::max(most, machine.replicas.seconds_for(stage.gradients));
  }
  return most;
}

}  // namespace

std::string cluster_text(const base::Cluster& cluster, const simulate::Machine& machine,
                         const PartitionPlan& plan) {
  auto text =
      base::concat("cluster: ", cluster.name(), ", ", cluster.nodes(), " x ", cluster.type().about,
                   ", ", cluster.ranks(), " ranks\n",
                   ring_text("tensor parallelism", machine.sharers.count, machine.sharers.link),
                   ring_text("replicas", machine.replicas.count, machine.replicas.link));
  const auto& summary = plan.summary();
  if (!summary || summary->costs.empty() || summary->costs == "counts") return text;
  const double pipeline = summary->chosen.step_seconds, sums = sum_seconds(machine, *summary);
  return base::concat(text, "step of the job: ", three_digits(pipeline + sums), " s, of which ",
                      three_digits(sums), " s are sums of gradients over replicas\n");
}

}  // namespace smp
