// api/session/start.h: starting ranks with what programs cannot ask for yet.
#pragma once

#include "smp/session.h"

namespace smp {

struct StartOptions {
  /// If true, pipelines side by side train by themselves instead of being replicas of one model.
  /// With it tests show that nothing takes the job for one pipeline.
  bool independent_pipelines = false;
};

/// Does what smp::init does, with options.
[[nodiscard]] Session start(int& argc, char** argv, const Config& config,
                            const StartOptions& options);
/// Does what smp::run_local does, with options.
void start_local(int ranks, const std::function<void()>& rank_main, const Config& config,
                 const LocalRun& run, const StartOptions& options);

}  // namespace smp
