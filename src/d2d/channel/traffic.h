// d2d/channel/traffic.h: what moves over a rank's wires, until the rank is told. Paper: App. G.1.
// Threads: the rank's thread only; a progress thread moves bytes beside it.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "d2d/channel/arrivals.h"
#include "d2d/channel/progress_thread.h"
#include "d2d/channel/route.h"

namespace smp::d2d {

/// What has moved, and nobody was told of yet.
struct News {
  bool any = false;
  std::vector<Token> sent;       ///< to be told before `arrived`, which may answer them
  std::vector<Arrival> arrived;  ///< whole frames
  std::exception_ptr failure;    ///< of a wire, or of what it brought; after all that arrived

  void clear() noexcept;
};

/// The wires of a rank, and the frames that have come over them in part. Whoever polls a wire, the
/// rank or a progress thread, only notes what has moved; the rank takes the news when no wire is
/// polling, and may send meanwhile.
class Traffic final : private WireHandler {
 public:
  explicit Traffic(Routes routes);
  ~Traffic();

  const Routes& routes() const noexcept { return routes_; }
  /// Returns the wires, which must be called under lock().
  WireSet& wires() noexcept { return routes_.wires(); }
  /// Returns the lock for what a progress thread uses as well; no lock where there is none.
  std::unique_lock<std::mutex> lock() const;
  /// Polls all wires, and takes the news.
  /// @param news  empty before
  /// @throws PeerLostError  tensors are overdue; see Channel::set_deadline().
  void poll(News& news);
  /// Takes the news without polling. A failure stays here too: a wire that is broken is left alone.
  void take(News& news);
  void set_deadline(base::Nanoseconds deadline) noexcept { deadline_ = deadline; }
  /// See Channel::move_beside_rank().
  void move_beside_rank();
  void stop_thread() noexcept { progress_.reset(); }
  /// Gives up all wires; see Wire. They may still write to the tensors that have come in part.
  void give_up(base::Nanoseconds waited, bool unwinding) noexcept;

 private:
  void on_control(GlobalRank source, ByteBuffer&& bytes) override;
  void on_sent(Token token) override;
  void on_received(Token token) override;
  ProgressThread::Motion move_aside() noexcept;
  bool poll_wires() noexcept;
  void require_in_time();

  Routes routes_;
  Arrivals arrivals_;
  News news_;
  bool completed_ = false;  // a frame, by its last tensor
  base::Nanoseconds deadline_ = 0;
  std::uint32_t polls_ = 0;                   // while tensors were missing
  bool beside_thread_ = false;                // for good
  mutable std::mutex moving_;                 // the wires, arrivals_ and news_
  std::unique_ptr<ProgressThread> progress_;  // the last: it uses the others
};

}  // namespace smp::d2d
