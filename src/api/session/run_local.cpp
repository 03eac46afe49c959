// api/session/run_local.cpp: all ranks in one process, on one thread, in simulated time
// (docs/design.md, Ranks in one process).
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "api/rank/rank_device.h"
#include "api/session/rank_session.h"
#include "api/session/start.h"
#include "base/check.h"
#include "base/random.h"
#include "d2d/wires/local/local_wire.h"
#include "fiber/sim_clock.h"
#include "smp/session.h"

namespace smp {
namespace {

/// Gives a rank a default generator of its own, as processes have, so that ranks which do not seed
/// build the same model. It travels with the fiber.
class OwnGenerator {
 public:
  explicit OwnGenerator(at::Generator own)
      : outer_(std::exchange(base::default_generator(), std::move(own))) {}
  ~OwnGenerator() { base::default_generator() = std::move(outer_); }
  OwnGenerator(const OwnGenerator&) = delete;
  OwnGenerator& operator=(const OwnGenerator&) = delete;

 private:
  at::Generator outer_;
};

class LocalWorld {
 public:
  LocalWorld(int ranks, const std::function<void()>& rank_main, const Config& config,
             const LocalRun& run, const StartOptions& start)
      : ranks_(ranks),
        rank_main_(rank_main),
        start_(start),
        clock_(run.seed),
        errors_(static_cast<std::size_t>(ranks)),
        running_(static_cast<std::size_t>(ranks)) {
    clock_.random_choice = run.random_order;
    d2d::LocalOptions options;
    options.clock = &clock_;
    options.mean_delay = static_cast<base::Nanoseconds>(run.mean_delay * 1e9);
    hub_ = std::make_shared<d2d::LocalHub>(ranks, options);
    base::ConfigInput input;
    input.code = config;
    input.code.transport = "local";
    input.environment = base::environment_settings();
    input.world_size = ranks;
    config_ = base::resolve_config(input);
    plan_file_ = plan_file_of(config_);
    device_ = take_device(config_.values().device, /*local_rank=*/0);
  }

  void run() {
    auto& scheduler = fiber::Scheduler::install();
    SMP_REQUIRE(Rank::find_current() == nullptr, "smp::run_local inside of a session");
    scheduler.set_simulation(&clock_);
    scheduler.set_deadlock_handler([this] { break_deadlock(); });
    left_ = ranks_;
    watch_ = watch_ranks(config_.values(), nullptr);
    for (int rank = 0; rank < ranks_; ++rank) {
      scheduler.spawn([this, rank] { run_rank(rank); }, base::FiberSlots{}, kMainStackBytes);
    }
    static constexpr fiber::WaitReason kRanks{"the ranks of run_local", "", -1, -1};
    done_.rest(kRanks);
    scheduler.set_deadlock_handler(nullptr);
    scheduler.set_simulation(nullptr);
    rethrow_first();
  }

 private:
  /// Stack of the fiber that runs a rank's main program, which may build the whole model.
  static constexpr std::size_t kMainStackBytes = 8 << 20;

  void run_rank(int rank) {
    const auto index = static_cast<std::size_t>(rank);
    const OwnGenerator generator(generator_.clone());
    try {
      RankParts parts;
      parts.independent_pipelines = start_.independent_pipelines;
      parts.config = config_;
      parts.plan_file = plan_file_;
      parts.topology = Topology(config_.arrangement(), rank);
      parts.device = device_;
      parts.channel = std::make_unique<d2d::Channel>(routes_of(GlobalRank(rank)));
      RankSession session(std::move(parts));
      running_[index] = &session.rank();
      try {
        rank_main_();
      } catch (...) {
        note(index);
      }
      running_[index] = nullptr;
    } catch (...) {
      note(index);
    }
    if (--left_ == 0) done_.signal();
  }

  d2d::Routes routes_of(GlobalRank rank) const {
    if (start_.routes) return start_.routes(hub_, rank);
    return std::make_unique<d2d::LocalWire>(hub_, rank);
  }

  void note(std::size_t index) {
    errors_[index] = std::current_exception();
    if (!first_) first_ = errors_[index];
  }

  /// Ends every wait with the table of who waits for whom, unless a rank has something to tell; the
  /// ranks then unwind by themselves.
  void break_deadlock() {
    for (auto* rank : running_) {
      if (rank != nullptr && rank->server().tell_what_is_withheld()) return;
    }
    std::string report = "deadlock in run_local: nothing can run and no message is on its way:";
    for (const auto& line : fiber::Scheduler::instance().waiting_report()) {
      report += "\n    " + line;
    }
    SMP_ASSERT(!deadlock_, "still stuck after the ranks were told to unwind: ", report);
    deadlock_ = std::make_exception_ptr(InternalError(report));
    for (auto* rank : running_) {
      if (rank != nullptr) rank->server().abandon(report);
    }
  }

  void rethrow_first() {
    watch_.reset();
    if (deadlock_) std::rethrow_exception(deadlock_);
    if (first_) std::rethrow_exception(first_);
  }

  const at::Generator generator_ = base::default_generator().clone();  // what each begins with
  int ranks_;
  const std::function<void()>& rank_main_;
  const StartOptions start_;
  fiber::SimClock clock_;
  std::shared_ptr<d2d::LocalHub> hub_;
  base::ResolvedConfig config_;
  partitioning::PlanFile plan_file_;
  c10::Device device_{c10::DeviceType::CPU};  // of all ranks: they share a thread
  std::unique_ptr<server::Watchdog::Session> watch_;
  std::vector<std::exception_ptr> errors_;
  std::vector<Rank*> running_;
  std::exception_ptr first_;
  std::exception_ptr deadlock_;
  fiber::Event done_;
  int left_ = 0;
};

}  // namespace

void run_local(int ranks, const std::function<void()>& rank_main, const Config& config,
               const LocalRun& run) {
  start_local(ranks, rank_main, config, run, {});
}

void start_local(int ranks, const std::function<void()>& rank_main, const Config& config,
                 const LocalRun& run, const StartOptions& options) {
  SMP_REQUIRE(ranks >= 1, "smp::run_local with ", ranks, " ranks; at least one is needed");
  LocalWorld(ranks, rank_main, config, run, options).run();
}

}  // namespace smp
