// api/rank/rank.h: what one process of the job is: its place in it, its settings, its device, the
// others it talks to, and the server of its modules.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "api/rank/rank_groups.h"
#include "api/rank/rank_parts.h"
#include "api/rank/reporting_rank.h"
#include "base/fiber_local.h"
#include "d2d/collectives/communicator.h"
#include "deferred/deferral.h"
#include "schedule/schedule.h"
#include "server/engine/module_server.h"
#include "tp/group/tensor_parallel.h"

namespace smp {

/// Threads: the rank's.
class Rank {
 public:
  /// Refers to `parts`. Nothing is sent before start().
  explicit Rank(const RankParts& parts);
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;
  /// Checks that all ranks agree, and connects what is left to connect. Collective.
  /// @throws UsageError, UnsupportedError  on every rank
  void start();
  /// Tells the others that this rank takes part in nothing any more; what cannot be told is logged.
  void leave() noexcept;

  /// Of the running fiber. @throws UsageError if there is none.
  static Rank& current();
  static Rank* find_current() noexcept;

  /// What was there before it.
  const RankParts& parts() const noexcept { return parts_; }
  const Topology& topology() const noexcept { return parts_.topology; }
  PpRank pp_rank() const noexcept { return server_.rank(); }
  /// Whether this is the stage on which bodies run and plans are made.
  bool is_first_stage() const noexcept { return pp_rank().value() == 0; }
  const Config& config() const noexcept { return parts_.config.values(); }
  /// Of gradients or values that travel together.
  std::int64_t bucket_bytes() const noexcept {
    return static_cast<std::int64_t>(config().bucket_cap_mb * (1 << 20));
  }

  /// What this rank has sent and received so far, and over what.
  const d2d::Channel& channel() const noexcept { return *parts_.channel; }
  const RankGroups& groups() const noexcept { return groups_; }
  const ReportingRank& reporting() const noexcept { return reporting_; }
  server::ModuleServer& server() noexcept { return server_; }
  const schedule::Schedule& schedule() const noexcept { return *schedule_; }
  /// Has no more than `most` microbatches in flight from the next step on, under "interleaved".
  void lower_active_microbatches(int most);
  /// A microbatch starts when the one before has ended.
  const schedule::Schedule& one_at_a_time() const noexcept { return *one_at_a_time_; }

  /// What serves code inside of bodies: the server, or for a trial run something else.
  server::StepEngine& engine() noexcept { return trial_ ? *trial_ : server_.engine(); }
  /// Set while the body of the first step runs in advance.
  void set_trial(server::StepEngine* trial) noexcept;
  bool is_tracing() const noexcept { return trial_ != nullptr; }
  /// Whether the body of a step runs, or is traced.
  bool in_step() const noexcept { return server_.in_step() || is_tracing(); }
  /// Sets the call of the program that this rank is in, and returns the one before (public_call.h).
  const char* exchange_call(const char* name) noexcept {
    return communicators_.exchange_call(name);
  }
  /// Called before every step. @param shared  all replicas run it, as they do those with gradients
  void expect_step(bool shared) noexcept;
  /// Steps so far that all replicas ran, the expected one among them.
  std::int64_t shared_steps() const noexcept { return shared_steps_; }
  /// The number, above 0, of the running step in all ranks that take part in it, however many steps
  /// without gradients each replica has run; the next step's is higher.
  std::uint64_t epoch() const noexcept;
  /// What bodies and modules of the last step did with other ranks is over.
  void end_meetings() { communicators_.end_epoch(epoch()); }

 private:
  void fail_meetings(const std::string& why) noexcept;

  const RankParts& parts_;
  std::optional<deferred::Eager> eager_;  // where delayed initialisation is switched off
  d2d::Communicators communicators_;
  RankGroups groups_;
  ReportingRank reporting_;
  /// Where it runs, as the server knows, in epochs of the rank.
  class Places final : public module::CallPlaces {
   public:
    explicit Places(Rank& rank) : rank_(rank) {}
    std::optional<module::CallPlace> next() override;

   private:
    Rank& rank_;
  } places_{*this};
  tp::TensorParallel tensor_parallel_;
  base::FiberLocalScope<tp::TensorParallel> current_group_;  // workers of the server inherit it
  std::unique_ptr<schedule::Schedule> schedule_;
  int active_microbatches_;
  std::unique_ptr<schedule::Schedule> one_at_a_time_ = schedule::make_interleaved(1);
  server::ModuleServer server_;
  server::StepEngine* trial_ = nullptr;
  std::int64_t shared_steps_ = 0;
  std::int64_t steps_before_ = 0;  // server_.steps() when the last shared one was expected
  bool shared_step_ = false;       // whether the step that runs, or was last, is one
};

}  // namespace smp
