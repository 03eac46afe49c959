// server/module_server.h: one rank's server: it runs requests of other ranks on worker fibers,
// sends its own, and carries a step from its first microbatch to its last (paper §4.1, §4.2, App.
// B). Threads: the rank's thread; the user's thread is lent to it during a step.
#pragma once

#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/recorder.h"
#include "d2d/transport.h"
#include "module/rank_sink.h"
#include "schedule/schedule.h"
#include "server/collectives.h"
#include "server/deferred_statistics.h"
#include "server/execution.h"
#include "server/executor.h"
#include "server/foreign_parameters.h"
#include "server/gradient_accumulator.h"
#include "server/message.h"
#include "server/pending_requests.h"
#include "server/record_store.h"
#include "server/stall_watch.h"
#include "server/worker_pool.h"

namespace smp::server {

struct ServerOptions {
  std::size_t fiber_stack_bytes = 1 << 20;
  std::uint64_t seed = 0;
  double stall_seconds = 30;   ///< silence that is reported; 0: never
  double abort_seconds = 600;  ///< silence that ends the wait with PeerLostError; 0: never
  bool oversubscribed = false;
};

/// What one step is to do. The same on all ranks but for `body` and `outputs`.
struct StepTask {
  int microbatches = 1;
  const schedule::Schedule* schedule = nullptr;
  std::int64_t random_step = 0;  ///< of this step object; keys the random streams
  std::int64_t first_microbatch = 0;
  bool broadcast_outputs = true;
  std::function<void(int microbatch)> body;  ///< pp_rank 0 only
  std::vector<Packet>* outputs = nullptr;    ///< one a microbatch; filled by `body` on pp_rank 0
};

/// Counts since construction; requests follow closed formulas (tests, docs).
struct ServerCounters {
  std::uint64_t forward_requests = 0;   ///< sent
  std::uint64_t backward_requests = 0;  ///< sent
  std::uint64_t executed_forward = 0;
  std::uint64_t executed_backward = 0;
  std::uint64_t records_left = 0;  ///< records that neither backward nor a release ended
  std::uint64_t swallowed = 0;     ///< routed calls made while unwinding, answered with nothing
};

class ModuleServer final : public module::RankSink {
 public:
  ModuleServer(d2d::Transport& transport, const ServerOptions& options);
  ~ModuleServer() override;

  int rank() const noexcept { return transport_.rank(); }
  int size() const noexcept { return transport_.size(); }

  /// The routed modules of all models, by number; between steps.
  void attach(std::vector<RoutedBase*> modules);
  /// A model ends, and its modules may: their numbers stay taken.
  void detach(const std::vector<RoutedBase*>& modules) noexcept;
  /// nullptr where a module was detached.
  const std::vector<RoutedBase*>& modules() const noexcept { return modules_; }
  /// Hash of every parameter's requires_grad; requests carry it, so that frozen state that differs
  /// between ranks is an error.
  void set_frozen_hash(std::uint64_t hash) noexcept { frozen_hash_ = hash; }

  /// Runs one step: on pp_rank 0 the bodies, elsewhere what they ask for.
  /// @throws what left a body (pp_rank 0), RemoteError with its text (elsewhere). The next step
  ///         works.
  void run_step(const StepTask& task);

  /// Backward from within a body. Weights are the caller's business.
  void backward(const edge_list& roots, variable_list gradients, bool keep_graph);

  /// Tells the others that this rank takes part in nothing any more.
  void leave_job();

  /// Ends every wait of this rank: PeerLostError with `why` outside, a failed step inside of steps.
  void abandon(const std::string& why);

  bool in_step() const noexcept { return running_; }
  /// Microbatch of the running fiber, or -1.
  int current_microbatch() const noexcept;

  Collectives& collectives() noexcept { return collectives_; }
  ForeignParameters& foreign() noexcept { return foreign_; }
  base::Recorder& recorder() noexcept { return recorder_; }
  /// The last step as recorded, if recording was on.
  base::StepTrace take_trace();
  const ServerCounters& counters() const noexcept { return counters_; }
  const GradientAccumulator& accumulator() const noexcept { return accumulator_; }
  const WorkerPool& workers() const noexcept { return workers_; }
  std::size_t live_records() const noexcept { return records_.size(); }
  std::size_t pending_requests() const noexcept { return pending_.size(); }
  std::int64_t steps() const noexcept { return step_; }

  // module::RankSink
  Where where(const RoutedBase& module, int owner) override;
  void* enter(RoutedBase& module) override;
  void leave(RoutedBase& module, void* token) noexcept override;
  std::optional<Packet> call(RoutedBase& module, const CallEntry& entry, int owner,
                             Packet&& arguments) override;
  void on_switch(void* execution, bool running) noexcept override;
  void describe(const void* execution, char* text, std::size_t size) const noexcept override;

 private:
  friend class RemoteCall;
  class LocalScope;

  // Messages.
  void receive(int source, d2d::Frame&& frame) noexcept;
  void sort_by_step(int source, Message&& message);
  void dispatch(int source, Message&& message);
  void send(int peer, Message&& message);
  void tell_others(Message&& message);
  Message about_microbatch(Kind kind, int microbatch) const;

  // The step.
  void begin_step(const StepTask& task);
  void end_step();
  void check_foreign_parameters();
  void serve_until(bool (ModuleServer::*done)() const noexcept);
  bool microbatches_are_done() const noexcept;
  bool ranks_are_done() const noexcept;
  void finish_gradients();
  void keep_house();
  void start_microbatches();
  void run_body(int microbatch);
  void run_pass(int microbatch, bool late, const edge_list& roots, variable_list gradients,
                bool keep_graph);
  void wait_for_backward_turn(int microbatch);
  void microbatch_finished(const Execution& body);
  void forward_finished();
  void send_outputs();
  void take_outputs(Message&& stop);

  // Requests of others.
  void execute_forward(int source, Message&& request);
  Message run_forward(Message&& request, const Execution& execution);
  Message answer_forward(Packet&& result, c10::intrusive_ptr<BoundaryInput> inputs,
                         const Message& request, const Execution& execution);
  void execute_backward(int source, Message&& request);
  Message run_record(Message&& request, Execution& execution);
  template <class Run>
  void answer(int source, std::uint64_t request, Execution& execution, Run&& run);
  RoutedBase& requested_module(const Message& request) const;
  base::Priority priority(schedule::Phase phase, int microbatch) const;

  // Requests of ours.
  Message forward_request(RoutedBase& module, const CallEntry& entry, const Packet& arguments);
  std::optional<Message> await_response(Message&& request, int owner, const RoutedBase& module);
  bool empty_because_unwinding();
  [[noreturn]] void throw_aborted();
  void attach_history(Message& response, int owner, const std::vector<at::Tensor>& arguments,
                      const RoutedBase& module);
  void request_backward(int owner, Message&& request, PendingRequests::Callback answer);
  void release(int owner, std::int64_t step, std::uint64_t record);
  void flush_releases();
  std::uint64_t random_key(int microbatch, const char* path, int call) const;

  // Failure.
  void fail_step(std::exception_ptr error);
  void abort_locally() noexcept;
  void peer_left(int peer, const Message& farewell);
  void silence(double seconds, bool final);

  d2d::Transport& transport_;
  const ServerOptions options_;
  base::FiberScheduler& scheduler_;
  base::SteadyClock steady_;
  base::Recorder recorder_{steady_};
  ForeignParameters foreign_;
  GradientAccumulator accumulator_;
  DeferredStatistics statistics_;
  PendingRequests pending_;
  RecordStore records_;
  ServerCounters counters_;
  std::uint64_t frozen_hash_ = 0;

  std::vector<RoutedBase*> modules_;
  std::vector<bool> normalises_;         // by module: it may keep running statistics
  std::vector<std::vector<int>> calls_;  // by microbatch, by module: executions so far

  // The running step.
  std::int64_t step_ = 0;
  bool running_ = false;
  StepTask task_;
  schedule::Progress progress_;
  bool finish_asked_ = false;  // by rank 0: all microbatches are done
  int finished_ranks_ = 0;     // rank 0: that have summed their gradients
  std::optional<Message> stop_;
  base::Event wake_;                // of the fiber in serve_until()
  bool end_is_due_ = false;         // it only waits for the workers
  std::vector<base::Event*> gate_;  // bodies that wait for their backward's turn
  std::vector<std::pair<int, std::uint64_t>> to_release_;  // not sent yet
  std::vector<std::uint64_t> released_;                    // by others, not freed yet
  bool aborting_ = false;
  std::exception_ptr failure_;
  base::StepTrace trace_;

  struct Early {
    int source;
    Message message;
  };
  std::deque<Early> early_;  // of a step this rank has not begun
  bool receiving_ = false;
  std::string left_;  // which rank left first, and when
  std::int64_t left_after_ = 0;
  std::shared_ptr<ModuleServer> self_{this, [](ModuleServer*) {}};  // for weak references

  Collectives collectives_;
  WorkerPool workers_;
  StallWatch stall_watch_;
  std::shared_ptr<void> poll_;
};

}  // namespace smp::server
