// api/rank/recorded_run.cpp: see the header.
#include "api/rank/recorded_run.h"

#include <algorithm>
#include <map>
#include <utility>

#include "api/rank/exchange.h"
#include "api/rank/rank.h"
#include "base/check.h"
#include "base/log.h"
#include "base/random.h"
#include "config/config_sources.h"
#include "d2d/job/route_text.h"
#include "schedule/schedule_lists.h"

namespace smp {
namespace {

using Route = partitioning::RunRecord::Route;

std::string route_to(const d2d::Routes& routes, GlobalRank peer, c10::Device device) {
  return d2d::route_text(routes, peer,
                         d2d::memory_kind(device.type()).value_or(d2d::MemoryKind::kHost));
}

/// Of this rank: what peers are reached over.
std::map<std::string, std::vector<int>> own_routes(const d2d::Routes& routes, c10::Device device) {
  std::map<std::string, std::vector<int>> own;
  for (const GlobalRank peer : routes.members()) {
    if (peer != routes.rank()) own[route_to(routes, peer, device)].push_back(peer.value());
  }
  for (auto& [over, peers] : own) std::sort(peers.begin(), peers.end());
  return own;
}

}  // namespace

std::vector<Route> gather_routes(const Rank& rank) {
  if (!rank.parts().mpi) return {};
  const auto ranks = rank.groups().training_ranks();
  const auto own = own_routes(rank.channel().routes(), rank.parts().device);
  const auto all = gather_values(ranks, own, "the routes of all ranks");
  std::vector<Route> routes;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const int from = ranks.members()[static_cast<int>(i)].value();
    for (const auto& [over, peers] : all[i]) {
      routes.push_back({from, partitioning::ranks_text(peers), over});
    }
  }
  return routes;
}

partitioning::RunRecord run_record(const Rank& rank, const PartitionPlan& plan,
                                   std::vector<Route> routes) {
  constexpr std::string_view kFile = "file:";
  const Config& config = rank.config();
  auto settings = base::settings_to_record(rank.parts().config);
  const auto& summary = plan.summary();
  const int chosen = summary ? summary->active_microbatches : 0;
  if (chosen > 0 && settings.contains("active_microbatches")) {
    settings["active_microbatches"] = std::min(chosen, config.active_microbatches.value_or(chosen));
  }
  partitioning::RunRecord run;
  run.settings = base::json_text(settings);
  if (config.pipeline.starts_with(kFile)) {
    run.lists = schedule::ScheduleLists::read(config.pipeline.substr(kFile.size())).to_text();
  }
  run.ranks = rank.topology().size();
  run.routes = std::move(routes);
  return run;
}

RecordedRun recorded_run(const base::ResolvedConfig& config) {
  if (config.plan_text().empty()) return std::nullopt;
  return partitioning::find_run_record(config.plan_text(), config.values().plan_file);
}

std::string identity_of(const RecordedRun& run) {
  if (!run) return "none";
  auto key = base::mix_key(base::mix_key(static_cast<std::uint64_t>(run->ranks), run->settings),
                           run->lists);
  for (const auto& [from, to, over] : run->routes) {
    key = base::mix_key(key, base::concat(from, ' ', to, ' ', over));
  }
  return std::to_string(key);
}

void warn_of_other_ranks(const RecordedRun& run, const std::string& file, int ranks) {
  if (!run || run->routes.empty() || run->ranks == ranks) return;
  base::log(base::LogLevel::kWarning, file, ": the run in it was of ", run->ranks,
            " ranks, this one is of ", ranks, ": its routes are not looked at");
}

void keep_to_routes(d2d::RouteOptions& options, const partitioning::RunRecord& run, int ranks) {
  if (run.routes.empty() || run.ranks != ranks) return;
  std::vector<std::string> texts;
  for (const Route& route : run.routes) texts.push_back(route.over);
  d2d::keep_to(options, texts);
}

void require_routes(const d2d::Routes& routes, c10::Device device,
                    const partitioning::RunRecord& run, const std::string& file) {
  if (run.ranks != routes.members().size()) return;
  for (const auto& [to, over] : run.routes_from(routes.rank().value())) {
    const GlobalRank peer(to);
    SMP_REQUIRE(routes.reaches(peer), file, ": \"run\" has a route from rank ", routes.rank(),
                " to rank ", to, ", which is none of the ", run.ranks, " ranks");
    const auto here = route_to(routes, peer, device);
    SMP_REQUIRE(here == over, file, ": in its run tensors from rank ", routes.rank(), " to rank ",
                to, " went ", base::excerpt(over), ", here they go ", here,
                "; start the ranks on the machines and with the memory that they had (rank 0 warns "
                "above of what a machine refuses), or take \"routes\" out of \"run\" in the file");
  }
}

}  // namespace smp
