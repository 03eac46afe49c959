// server/admission/admission.cpp: see the header.
#include "server/admission/admission.h"

#include <algorithm>

#include "base/check.h"

namespace smp::server {
namespace {

/// Between two looks of one that is held, while other fibers and polls run. What stood before
/// begins by itself when it comes, so this only delays what was held back.
constexpr base::Nanoseconds kBetweenLooks = 100 * base::kMicrosecond;

/// In the list, and among those of its microbatch, as long as it waits, whatever ends that.
class WaitingFiber {
 public:
  WaitingFiber(WaitingList& list, std::vector<WaitingList::Entry>& fibers, Reason reason,
               int microbatch)
      : list_(list), fibers_(fibers), entry_(list.add(reason, microbatch, kBody)) {
    fibers_.push_back(entry_);
  }
  ~WaitingFiber() {
    std::erase(fibers_, entry_);
    list_.remove(entry_);
  }
  WaitingFiber(const WaitingFiber&) = delete;
  WaitingFiber& operator=(const WaitingFiber&) = delete;

  /// Suspends it, once.
  void wait(const char* module_path) const {
    fiber::Event turn;
    entry_->turn = &turn;
    const fiber::WaitReason reason{text_of(entry_->reason), module_path, -1, entry_->microbatch};
    turn.wait(reason);
  }

 private:
  WaitingList& list_;
  std::vector<WaitingList::Entry>& fibers_;
  const WaitingList::Entry entry_;
};

}  // namespace

Admission::Admission(schedule::StepProgress& progress, WorkTimes& times, WaitingList& waiting,
                     RequestStarter& starter)
    : progress_(progress),
      times_(times),
      starter_(starter),
      has_window_(progress.has_list() && progress.progress().pp_rank > 0),
      waiting_(waiting),
      inbox_(PpRank(progress.progress().pp_rank), starter,
             [this](Entry entry) { complete(entry); }),
      microbatches_(static_cast<std::size_t>(progress.microbatches())) {}

// ---- requests ----------------------------------------------------------------------------------

void Admission::add(ForwardTask&& task) {
  auto& request = task.request;
  if (request.row == 0) return enter(std::move(task));
  auto& row = rows_[{task.source.value(), request.row}];
  const bool has_turn = !row.runs && !row.starting && request.place == row.next;
  if (has_turn && request.promised.empty()) {
    row.runs = true;
    ++row.next;
    return enter(std::move(task));
  }
  const auto reason = request.promised.empty() ? Reason::kRow : Reason::kPromisedInput;
  const auto place = request.place;
  const auto entry = waiting_.add(reason, request.microbatch, request.module, std::move(task));
  row.waiting.insert_or_assign(place, entry);
  if (reason == Reason::kPromisedInput) inbox_.expect(entry);
}

void Admission::add(BackwardTask&& task, ModuleId module) {
  auto& request = task.request;
  const auto microbatch = request.microbatch;
  if (!request.promised.empty()) {
    return inbox_.expect(
        waiting_.add(Reason::kPromisedGradient, microbatch, module, std::move(task)));
  }
  if (!request.early) return start(std::move(task), false);
  auto& forward = forwards_[{task.source, request.early->forward}];
  if (forward.ended) return start(std::move(task), !forward.record);
  forward.backward =
      waiting_.add(Reason::kForwardOfEarlyBackward, microbatch, module, std::move(task));
}

/// All that was promised to it has come.
void Admission::complete(Entry entry) {
  if (entry->reason == Reason::kPromisedGradient) {
    const bool failed = entry->failed;
    return start(waiting_.take<BackwardTask>(entry), failed);
  }
  entry->reason = Reason::kRow;
  const auto& task = std::get<ForwardTask>(entry->task);
  start_row({task.source.value(), task.request.row});
}

/// One that fails at once ends at once: who starts it goes on with the next, so that a row of many
/// does not take a stack of many frames.
void Admission::start_row(const RowName& name) {
  auto& row = rows_.at(name);
  if (row.starting) return;
  while (const auto next = row.take_next()) {
    row.starting = true;
    const bool failed = (*next)->failed;
    auto task = waiting_.take<ForwardTask>(*next);
    failed ? starter_.start(std::move(task), true) : enter(std::move(task));
    if (opened_) return;  // the step has failed
    row.starting = false;
  }
}

std::optional<Admission::Entry> Admission::Row::take_next() {
  const auto first = waiting.find(next);
  if (runs || first == waiting.end() || first->second->missing > 0) return std::nullopt;
  const auto entry = first->second;
  waiting.erase(first);
  ++next;
  runs = true;
  return entry;
}

void Admission::enter(ForwardTask&& task) {
  const int microbatch = task.request.microbatch;
  if (!has_window_ || progress_.may_enter(microbatch)) {
    return starter_.start(std::move(task), false);
  }
  const auto module = task.request.module;
  at(microbatch)
      .at_window.push_back(waiting_.add(Reason::kWindow, microbatch, module, std::move(task)));
}

void Admission::start(BackwardTask&& task, bool failed) {
  const auto& early = task.request.early;
  if (early && early->forward) {
    const auto forward = forwards_.find({task.source, early->forward});
    task.request.record = forward == forwards_.end() ? RecordId() : forward->second.record;
  }
  starter_.start(std::move(task), failed);
}

void Admission::note_record(const RequestName& name, RecordId record, bool as_promised) {
  forwards_[name].record = as_promised ? record : RecordId();
}

void Admission::forward_ended(PpRank source, const ForwardRequest& request) {
  if (request.row == 0 || opened_) return;
  auto& forward = forwards_[{source, request.request}];
  forward.ended = true;
  if (const auto backward = std::exchange(forward.backward, std::nullopt)) {
    start(waiting_.take<BackwardTask>(*backward), !forward.record);
    if (opened_) return;
  }
  const RowName row{source.value(), request.row};
  rows_.at(row).runs = false;
  start_row(row);
}

// ---- microbatches ------------------------------------------------------------------------------

void Admission::keep(int microbatch) {
  if (has_window_) ++at(microbatch).kept;
}

void Admission::drop(int microbatch) {
  if (!has_window_) return;
  auto& own = at(microbatch);
  SMP_ASSERT(own.kept > 0, "microbatch ", microbatch);
  if (--own.kept == 0 && own.forward_done) ended_here(microbatch);
}

void Admission::forward_done(int microbatch) {
  if (microbatch >= std::ssize(microbatches_)) return;  // ranks differ, which is told elsewhere
  at(microbatch).forward_done = true;
  while (turn_ < std::ssize(microbatches_) && at(turn_).forward_done) {
    if (++turn_ < std::ssize(microbatches_)) wake(turn_, Reason::kMicrobatchOrder);
  }
  if (at(microbatch).kept == 0) ended_here(microbatch);
}

void Admission::ended_here(int microbatch) {
  if (!has_window_) return;
  progress_.ended_here(microbatch);
  while (const auto entering = progress_.next_to_enter()) {
    for (const Entry entry : std::exchange(at(*entering).at_window, {})) {
      if (opened_) return;
      starter_.start(waiting_.take<ForwardTask>(entry), false);
    }
  }
}

// ---- bodies ------------------------------------------------------------------------------------

void Admission::body_forward_done(int microbatch) {
  forward_done(microbatch);
  progress_.forward_finished(microbatch);
  for (const int other : progress_.open_gate()) wake(other, Reason::kBackwardGate);
}

void Admission::body_ended(int microbatch) {
  forward_done(microbatch);
  progress_.body_finished(microbatch);
  for (const int other : progress_.open_gate()) wake(other, Reason::kBackwardGate);
}

// ---- fibers ------------------------------------------------------------------------------------

void Admission::pass_gate(int microbatch) {
  while (!opened_ && !progress_.may_begin_backward(microbatch)) {
    WaitingFiber(waiting_, at(microbatch).fibers, Reason::kBackwardGate, microbatch).wait("");
  }
}

void Admission::pass_in_order(int microbatch, const char* module_path) {
  while (!opened_ && microbatch > turn_) {
    auto& fibers = at(microbatch).fibers;
    WaitingFiber(waiting_, fibers, Reason::kMicrobatchOrder, microbatch).wait(module_path);
  }
}

void Admission::hold(schedule::Phase phase, int microbatch) {
  auto& scheduler = fiber::Scheduler::instance();
  if (scheduler.simulated() || progress_.hold(phase, microbatch) == 0) return;
  const WaitingFiber held(waiting_, at(microbatch).fibers, Reason::kHold, microbatch);
  const fiber::WaitReason reason{text_of(Reason::kHold), "", -1, microbatch};
  const auto& clock = times_.clock();
  const auto since = clock.now();
  while (!opened_) {
    const auto share = progress_.hold(phase, microbatch);
    if (share == 0) return;
    const auto waited = clock.now() - since;
    const auto left = times_.rule().longest(phase, share) - waited;
    if (left <= 0) return times_.rule().waited_in_vain(waited);
    scheduler.sleep_for(std::min(left, kBetweenLooks), reason);
  }
}

void Admission::wake(int microbatch, Reason reason) {
  for (const Entry entry : at(microbatch).fibers) {
    if (entry->reason == reason) entry->turn->signal();
  }
}

void Admission::open_all() noexcept {
  opened_ = true;
  for (const auto& waiting : waiting_) {
    if (waiting.turn != nullptr) waiting.turn->signal();
  }
}

void Admission::clear() noexcept {
  opened_ = true;
  waiting_.clear();
  inbox_.clear();
  rows_.clear();
  forwards_.clear();
}

}  // namespace smp::server
