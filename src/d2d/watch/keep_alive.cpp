// d2d/watch/keep_alive.cpp: see the header.
#include "d2d/watch/keep_alive.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <span>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "base/signals_blocked.h"

namespace smp::d2d {
namespace {

/// The only byte that ever travels: the sender is about to end in good order.
constexpr auto kLeaves = std::byte{'L'};

}  // namespace

KeepAlive::KeepAlive(GlobalRank own, std::vector<WatchedRank> ranks,
                     const KeepAliveOptions& options)
    : own_(own), options_(options), stop_(::eventfd(0, EFD_CLOEXEC)) {
  for (WatchedRank& rank : ranks) {
    rank.connection.keep_alive(options_.silence);
    ranks_.emplace_back().peer = std::move(rank);
  }
  try {
    if (stop_ < 0) throw std::system_error(errno, std::generic_category(), "eventfd");
    const base::SignalsBlocked blocked;
    thread_ = std::thread([this] { watch(); });
  } catch (const std::system_error&) {
    leave();  // or the others would miss this rank
    ::close(stop_);
    throw;
  }
}

KeepAlive::~KeepAlive() {
  ::eventfd_write(stop_, 1);
  thread_.join();
  ::close(stop_);
}

void KeepAlive::leave() noexcept {
  if (std::exchange(left_, true)) return;
  for (Watched& rank : ranks_) rank.peer.connection.send(std::span(&kLeaves, 1));
}

/// Watches the connections until it is told to stop. poll() passes over files that are -1.
void KeepAlive::watch() noexcept {
  std::vector<pollfd> waits;
  for (const Watched& rank : ranks_) waits.push_back({rank.peer.connection.file(), POLLIN, 0});
  waits.push_back({stop_, POLLIN, 0});
  for (;;) {
    if (::poll(waits.data(), waits.size(), -1) < 0) {
      if (errno == EINTR) continue;
      return;
    }
    if (waits.back().revents != 0) return;
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      if (waits[i].revents != 0 && !read(ranks_[i])) waits[i].fd = -1;
    }
  }
}

/// Reads from a connection. @return true if it still stands
bool KeepAlive::read(Watched& from) noexcept {
  std::byte what{};
  const auto got = ::recv(from.peer.connection.file(), &what, 1, 0);
  if (got > 0) {
    from.has_left = from.has_left || what == kLeaves;
    return true;
  }
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return true;
  if (from.has_left) return false;
  from.error = got == 0 || errno == ECONNRESET ? 0 : errno;
  from.closed_at = base::SteadyClock().now();
  any_closed_.store(true, std::memory_order_release);
  return false;
}

void KeepAlive::look() const {
  const auto now = base::SteadyClock().now();
  for (const Watched& rank : ranks_) {
    const auto closed_at = rank.closed_at.load();
    if (closed_at == 0) continue;
    const auto& [number, process, host, connection] = rank.peer;
    const int error = rank.error;
    SMP_REQUIRE_AS(PeerLostError, error == 0, "rank ", own_, ": rank ", number,
                   " is gone, or the network to its machine '", host,
                   "' is cut: the machine gave no sign of life for ",
                   options_.silence / base::kSecond, " s (", std::generic_category().message(error),
                   "); look at the network between the two, and restart from a checkpoint. Raise "
                   "keep_alive_seconds if the network may be silent for longer");
    SMP_REQUIRE_AS(PeerLostError, now - closed_at < options_.launcher_patience, "rank ", own_,
                   ": rank ", number, " is gone: its process ", process, " on '", host,
                   "' has ended, or given up its connection; restart from a checkpoint");
  }
}

}  // namespace smp::d2d
