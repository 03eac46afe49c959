// api/session/start.h: starting ranks with what programs cannot ask for yet.
#pragma once

#include <functional>
#include <memory>

#include "d2d/channel/route.h"
#include "smp/rank.h"
#include "smp/session.h"

namespace smp::d2d {
class LocalHub;
}

namespace smp {

struct StartOptions {
  /// If true, pipelines side by side train by themselves instead of being replicas of one model.
  /// With it tests show that nothing takes the job for one pipeline.
  bool independent_pipelines = false;
  /// Makes the routes of a rank of run_local; empty: the local wire carries everything. Tests put
  /// other wires beside it, between the ranks of this process.
  std::function<d2d::Routes(const std::shared_ptr<d2d::LocalHub>& hub, GlobalRank rank)> routes{};
};

/// Does what smp::init does, with options.
[[nodiscard]] Session start(int& argc, char** argv, const Config& config,
                            const StartOptions& options);
/// Does what smp::run_local does, with options.
void start_local(int ranks, const std::function<void()>& rank_main, const Config& config,
                 const LocalRun& run, const StartOptions& options);

}  // namespace smp
