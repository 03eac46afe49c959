// d2d/channel/traffic.cpp: see the header.
#include "d2d/channel/traffic.h"

#include <system_error>

#include "base/check.h"
#include "base/keep_until_exit.h"

namespace smp::d2d {

void News::clear() noexcept {
  any = false;
  sent.clear();
  arrived.clear();
  failure = nullptr;
}

Traffic::Traffic(Routes routes) : routes_(std::move(routes)) { wires().set_handler(this); }

Traffic::~Traffic() {
  stop_thread();
  wires().set_handler(nullptr);
}

void Traffic::give_up(base::Nanoseconds waited, bool unwinding) noexcept {
  wires().give_up(waited, unwinding);
  base::keep_until_exit(std::move(arrivals_));
}

// ---- what wires tell ----

void Traffic::on_sent(Token token) {
  news_.any = true;
  news_.sent.push_back(token);
}

void Traffic::on_control(GlobalRank source, ByteBuffer&& bytes) {
  // It may be an answer, which tells that what it answers has arrived: let go of that first, so
  // that whoever gets the answer may write to it.
  wires().complete_beside(routes_.control(source));
  news_.any = true;
  arrivals_.read(source, std::move(bytes), routes_, news_.arrived);
}

void Traffic::on_received(Token token) {
  news_.any = true;
  completed_ |= arrivals_.received(token, news_.arrived);
}

/// Polls the wires and notes what moved, and what went wrong. @return true if bytes moved
bool Traffic::poll_wires() noexcept {
  if (news_.failure) return false;
  try {
    const bool moved = wires().poll();
    // Such a frame may be an answer as well, and wires look at transfers a few at a time.
    while (std::exchange(completed_, false)) wires().complete();
    news_.any |= moved;
    return (beside_thread_ && wires().take_stir()) || moved;
  } catch (...) {
    news_.any = true;
    news_.failure = std::current_exception();
    return true;
  }
}

// ---- on the rank's thread ----

void Traffic::poll(News& news) {
  {
    const auto own = lock();
    require_in_time();
    poll_wires();
    routes_.take_back_loans();
    take(news);
  }
  if (progress_) progress_->note_owner_moved();
}

void Traffic::take(News& news) {
  if (!news_.any) return;
  std::swap(news, news_);
  news_.failure = news.failure;
}

/// Fails if tensors are overdue. A rank that was busy with other things for longer than the
/// deadline first takes what has come meanwhile: it must have polled for the missing tensors that
/// often.
void Traffic::require_in_time() {
  constexpr std::uint32_t kPollsToAsk = 1 << 18;  // half a second, or more where the thread sleeps
  if (deadline_ == 0 || arrivals_.empty()) {
    polls_ = 0;
    return;
  }
  if (++polls_ % kPollsToAsk != 0) return;
  const auto late = arrivals_.overdue(deadline_);
  SMP_REQUIRE_AS(PeerLostError, late.empty(), "rank ", routes_.rank(), ": ", late,
                 ": the network loses data, or that rank does not send; restart from a checkpoint, "
                 "or raise abort_seconds");
}

std::unique_lock<std::mutex> Traffic::lock() const {
  if (!beside_thread_) return {};
  std::unique_lock lock(moving_, std::try_to_lock);
  if (lock) return lock;
  if (progress_) progress_->set_owner_waits(true);  // or it might be first again and again
  lock.lock();
  if (progress_) progress_->set_owner_waits(false);
  return lock;
}

// ---- with a progress thread ----

void Traffic::move_beside_rank() {
  const auto* const bound = wires().bound_to_one_thread();
  SMP_REQUIRE(bound == nullptr, "rank ", routes_.rank(), ": a progress thread beside the wire ",
              bound->name(), ", which only the thread of the rank may call; use other wires.");
  if (beside_thread_) return;
  beside_thread_ = true;
  try {
    progress_ = std::make_unique<ProgressThread>([this] { return move_aside(); });
  } catch (const std::system_error& error) {
    throw UnsupportedError(base::concat("rank ", routes_.rank(),
                                        ": no progress thread: ", error.what(),
                                        "; allow this user more processes (ulimit -u, or the "
                                        "container's limit), or set progress_thread = false"));
  }
}

/// Moves bytes on the progress thread, where LibTorch sees new tensors and no others.
ProgressThread::Motion Traffic::move_aside() noexcept {
  using Motion = ProgressThread::Motion;
  const std::lock_guard lock(moving_);
  if (news_.failure) return Motion::kNone;
  if (poll_wires()) return Motion::kSome;
  return arrivals_.empty() && wires().drained() ? Motion::kNone : Motion::kAwaited;
}

}  // namespace smp::d2d
