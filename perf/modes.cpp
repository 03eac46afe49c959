// perf/modes.cpp: what a step costs beside its computation, part by part (perf/modes/).
#include <CLI/CLI.hpp>
#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/check.h"
#include "d2d/job/mpi_session.h"
#include "harness.h"
#include "modes/chain.h"
#include "modes/dispatch.h"
#include "modes/gradient_penalty.h"
#include "modes/half_split.h"
#include "modes/mode.h"
#include "program.h"
#include "sleeping_stages.h"
#include "smp/smp.h"

namespace smp::perf::modes {
namespace {

struct Part {
  std::string name;
  void (*report)(std::optional<Report>&, const InSession&);
  int ranks = 2;
};

const std::vector<Part>& parts() {
  static const std::vector<Part> all{
      {"chain", report_chain},       {"dispatch", report_dispatch},
      {"recorder", report_recorder}, {"smallest_module", report_smallest_module},
      {"gpt", report_half_split},    {"gradient_penalty", report_gradient_penalty},
      {"bytes", report_bytes, 3}};
  return all;
}

void run(int argc, char** argv) {
  CLI::App app("What steps cost beside their computation", "smp perf modes");
  app.footer("--ranks P starts P ranks; without it 2 for times, then 3 for bytes.");
  std::vector<std::string> names, wanted;
  for (const Part& part : parts()) names.push_back(part.name);
  app.add_option("--part", wanted, "to measure (default: all)")->check(CLI::IsMember(names));
  if (!parse_options(app, argc, argv)) return;
  const d2d::MpiSession mpi;
  SMP_REQUIRE(mpi.size() == 2 || mpi.size() == 3, "perf modes runs on 2 or 3 ranks");
  auto report = report_of_ranks(mpi.rank().value(), "modes", Report::Earlier::kKept);
  const auto session = [&](Mode mode, const std::function<void()>& body) {
    in_session(argc, argv, config_of(mode), body);
  };
  for (const Part& part : parts()) {
    const bool is_wanted =
        wanted.empty() || std::find(wanted.begin(), wanted.end(), part.name) != wanted.end();
    if (is_wanted && part.ranks == mpi.size()) part.report(report, session);
  }
  if (report) report->finish();
}

const Program program{"modes", run};

}  // namespace
}  // namespace smp::perf::modes
