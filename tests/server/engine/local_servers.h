// Servers of several ranks in one thread: fibers, local wires, simulated time; no session above
// them.
#pragma once

#include <torch/nn/module.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "d2d/wires/local/local_wire.h"
#include "fiber/sim_clock.h"
#include "server/engine/module_server.h"

namespace smp::server::test {

/// Gives the routed modules below `model` their places: on the rank that `owners` names for their
/// path, or else with their parent. The server places its own parameters.
inline void place_modules(ModuleServer& server, torch::nn::Module& model,
                          const std::map<std::string, int>& owners) {
  std::map<std::string, int> owner_of{{"", 0}};
  std::vector<RoutedBase*> routed;
  for (const auto& item : model.named_modules()) {
    const auto& path = item.key();
    const auto dot = path.rfind('.');
    const auto named = owners.find(path);
    const int owner = named != owners.end()
                          ? named->second
                          : owner_of.at(dot == std::string::npos ? "" : path.substr(0, dot));
    owner_of[path] = owner;
    if (auto* module = dynamic_cast<RoutedBase*>(item.value().get())) {
      module->smp_place = {-1, PpRank(owner), path};
      routed.push_back(module);
    }
    if (PpRank(owner) != server.rank()) continue;
    for (const auto& parameter : item.value()->parameters(/*recurse=*/false)) {
      server.parameters().place(parameter);
    }
  }
  server.modules().attach_model(routed);
  server.settings().attach(model);
}

enum class Time { kSimulated, kReal };

/// One thread's ranks. Every rank runs the same function on a fiber of its own.
class LocalServers {
 public:
  /// In real time messages arrive at once.
  /// @param fixed_delay  of each message, in simulated time; otherwise it is drawn
  explicit LocalServers(int ranks, std::uint64_t seed = 1, Time time = Time::kSimulated,
                        std::optional<base::Nanoseconds> fixed_delay = std::nullopt)
      : clock_(seed),
        simulation_(time == Time::kSimulated ? &clock_ : nullptr),
        servers_(static_cast<std::size_t>(ranks)),
        channels_(static_cast<std::size_t>(ranks)) {
    d2d::LocalOptions options;
    options.clock = simulation_;
    options.fixed_delay = fixed_delay;
    hub_ = std::make_shared<d2d::LocalHub>(ranks, options);
    for (int rank = 0; rank < ranks; ++rank) stages_.emplace_back(rank);
  }

  /// Returns when all ranks have; rethrows what left the first that failed. A deadlock ends all
  /// waits, with a report.
  void run(const std::function<void(ModuleServer& server)>& rank_main) {
    auto& scheduler = fiber::Scheduler::install();
    scheduler.set_simulation(simulation_);
    scheduler.set_deadlock_handler([this] { break_deadlock(); });
    std::size_t left = servers_.size();
    fiber::Event ended;
    for (const auto rank : stages_) {
      scheduler.spawn(
          [&, rank] {
            try {
              run_rank(rank, rank_main);
            } catch (...) {
              if (!error_) error_ = std::current_exception();
            }
            if (--left == 0) ended.signal();
          },
          {}, kStackBytes);
    }
    ended.rest({"the ranks of the test", "", -1, -1});
    scheduler.set_deadlock_handler(nullptr);
    scheduler.set_simulation(nullptr);
    if (error_) std::rethrow_exception(error_);
  }

  /// Why ranks were told to end all waits.
  std::vector<std::string> aborted;

  d2d::LocalHub& hub() noexcept { return *hub_; }
  ServerOptions& options() noexcept { return options_; }
  /// While its rank runs.
  ModuleServer& server(int rank) { return *servers_.at(static_cast<std::size_t>(rank)); }
  d2d::Channel& channel(PpRank rank) const { return *channels_.at(rank.index()); }
  /// Simulated, since the ranks began.
  base::Nanoseconds now() const noexcept { return clock_.now(); }
  /// Suspends the calling fiber.
  static void sleep(base::Nanoseconds time) {
    fiber::Scheduler::instance().sleep_for(time, {"the test", "", -1, -1});
  }

 private:
  static constexpr std::size_t kStackBytes = 4 << 20;

  void run_rank(GlobalRank rank, const std::function<void(ModuleServer& server)>& rank_main) {
    d2d::Channel channel(std::make_unique<d2d::LocalWire>(hub_, rank));
    ModuleServer server(channel, stages_, options_,
                        [this](const std::string& why) { aborted.push_back(why); });
    servers_[rank.index()] = &server;
    channels_[rank.index()] = &channel;
    try {
      rank_main(server);
    } catch (...) {
      servers_[rank.index()] = nullptr;
      server.leave_job();
      throw;
    }
    servers_[rank.index()] = nullptr;
  }

  void break_deadlock() {
    std::string report = "a deadlock:";
    for (const auto& line : fiber::Scheduler::instance().waiting_report()) report += "\n  " + line;
    if (std::exchange(deadlocked_, true)) {
      std::fprintf(stderr, "still stuck after the ranks were told to unwind; %s\n", report.c_str());
      std::abort();
    }
    for (auto* server : servers_) {
      if (server != nullptr) server->abandon(report);
    }
  }

  fiber::SimClock clock_;
  fiber::SimClock* simulation_;
  std::shared_ptr<d2d::LocalHub> hub_;
  std::vector<GlobalRank> stages_;
  std::vector<ModuleServer*> servers_;
  std::vector<d2d::Channel*> channels_;
  ServerOptions options_;
  std::exception_ptr error_;
  bool deadlocked_ = false;
};

}  // namespace smp::server::test
