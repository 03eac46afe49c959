// server/admission/admission.h: may this start? Everything that waits for an answer waits here.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "schedule/step_progress.h"
#include "server/admission/promised_inbox.h"
#include "server/admission/waiting_list.h"
#include "server/admission/work_times.h"

namespace smp::server {

/// Of one step on one rank: decides what may start, one thing after the other (Reason), as far as
/// the rank itself knows; what the schedule wants says schedule::StepProgress.
///
///   body              next_body(); at its first backward pass_gate()
///   forward request   add(): its turn in the row of its execution, its promised inputs, the window
///                     of its microbatch; on a fiber then hold()
///   backward request  add(): its promised gradients, or the end of its forward; then hold()
///   call of a module that keeps state   pass_in_order()
///
/// Whoever waits for other microbatches waits for lower ones, so never in a circle. Threads: the
/// rank's; what does not suspend is safe in a poll.
class Admission {
 public:
  /// @param waiting  for what waits in this step; empty
  /// These outlive this object.
  Admission(schedule::StepProgress& progress, WorkTimes& times, WaitingList& waiting,
            RequestStarter& starter);

  // ---- requests of other ranks

  /// The requests that one execution makes (ForwardRequest::row) run one after the other on this
  /// rank, as in one process: modules here may share state. Requests of others do not wait for
  /// them.
  void add(ForwardTask&& task);
  /// @param module  for reports, if it is known
  void add(BackwardTask&& task, ModuleId module = kBody);
  /// A tensor that was promised to one of them, or several.
  void take(PassedOn&& message) { inbox_.take(std::move(message)); }
  /// What a forward leaves, before it answers.
  void note_record(const RequestName& name, RecordId record, bool as_promised);
  /// It has answered, or failed.
  void forward_ended(PpRank source, const ForwardRequest& request);

  // ---- how far microbatches are on this rank

  /// Work of `microbatch` here, or a record of it, begins to exist, or is gone.
  void keep(int microbatch);
  void drop(int microbatch);
  /// `microbatch` calls nothing any more, on all ranks, that belongs to its forward pass. May be
  /// said again.
  void forward_done(int microbatch);
  /// Nothing of `microbatch` is left anywhere.
  void ended_here(int microbatch);

  // ---- bodies, on pp_rank 0

  /// The next that may start now; it counts as started.
  std::optional<int> next_body() { return progress_.start_next(); }
  void body_forward_done(int microbatch);
  void body_ended(int microbatch);

  // ---- fibers: these suspend, until it is their turn or the step fails
  // @throws UsageError  the fiber cannot wait there (fiber::Event::wait); nobody waits then.

  /// A body, before its first backward.
  void pass_gate(int microbatch);
  /// Until the forward passes of all lower microbatches are done.
  /// @param module_path  for reports; outlives the wait
  void pass_in_order(int microbatch, const char* module_path);
  /// Before this work begins: for a bounded time, until nothing that stands before it is left to
  /// begin. Not in simulated time, where the order must not depend on how long things take.
  void hold(schedule::Phase phase, int microbatch);
  /// The step failed: no fiber waits any more, and no request starts.
  void open_all() noexcept;

  // ---- the end

  /// Of what waits, requests and fibers, and of tensors that wait for requests.
  std::size_t size() const noexcept { return waiting_.size() + inbox_.size(); }
  /// The step is over: requests that still wait are dropped.
  void clear() noexcept;

 private:
  using Entry = WaitingList::Entry;
  /// Caller and ForwardRequest::row.
  using RowName = std::pair<int, std::uint64_t>;
  struct Row {
    /// The next one, if it may start: it counts as running.
    std::optional<Entry> take_next();

    std::map<std::uint32_t, Entry> waiting;  // by place
    std::uint32_t next = 0;
    bool runs = false;
    bool starting = false;  // start_row() is in the midst of it
  };
  struct Forward {
    RecordId record;
    bool ended = false;
    std::optional<Entry> backward;  // that came before its end
  };
  struct Microbatch {
    int kept = 0;
    bool forward_done = false;
    std::vector<Entry> at_window, fibers;  // in the order they came
  };

  void complete(Entry entry);
  void start_row(const RowName& name);
  void enter(ForwardTask&& task);
  void start(BackwardTask&& task, bool failed);
  void wake(int microbatch, Reason reason);
  Microbatch& at(int microbatch) { return microbatches_.at(static_cast<std::size_t>(microbatch)); }

  schedule::StepProgress& progress_;
  WorkTimes& times_;
  RequestStarter& starter_;
  const bool has_window_;  // not on pp_rank 0, where a microbatch ends with its body
  WaitingList& waiting_;   // all that waits; what follows only finds it
  PromisedInbox inbox_;
  std::map<RowName, Row> rows_;
  std::map<RequestName, Forward> forwards_;
  std::vector<Microbatch> microbatches_;
  int turn_ = 0;         // all lower ones have done their forward pass
  bool opened_ = false;  // by open_all() or clear(): for good
};

}  // namespace smp::server
