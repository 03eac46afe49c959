// api/start.h: starting ranks with what programs cannot ask for yet.
#pragma once

#include "smp/session.h"

namespace smp {

struct StartOptions {
  /// Several pipelines may run side by side, each a replica that learns by itself: for tests, until
  /// data parallelism is available.
  bool allow_replicas = false;
};

/// smp::init with options.
[[nodiscard]] Session start(int& argc, char** argv, const Config& config,
                            const StartOptions& options);
/// smp::run_local with options.
void start_local(int ranks, const std::function<void()>& rank_main, const Config& config,
                 const LocalRun& run, const StartOptions& options);

}  // namespace smp
