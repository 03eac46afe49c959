// d2d/watch/keep_alive_links.cpp: see the header. Who connects where is told over MPI, who has come
// as well, so a stranger who answers, or who calls, is never watched.
#include "d2d/watch/keep_alive_links.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <set>
#include <span>
#include <sstream>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/machine/host_name.h"

namespace smp::d2d {
namespace {

/// The time for connections to be made, and for those that others make to come here.
constexpr base::Nanoseconds kPatience = 3 * base::kSecond;

/// The first message on a connection. It travels as plain bytes, since all ranks run the same
/// program.
struct Hello {
  std::uint64_t secret;
  std::int32_t from, to;

  bool operator==(const Hello&) const = default;
};

/// Returns the host's name as one word; "?" if it is unknown.
std::string host_name() {
  const auto name = base::host_name();
  return name.empty() ? "?" : name;
}

/// The addresses that another rank offers.
struct Offered {
  std::int64_t process = 0;
  std::string host;
  std::vector<std::pair<std::string, int>> doors;  // address and port
};

Offered read_offer(const std::string& text) {
  Offered offer;
  std::istringstream words(text);
  words >> offer.process >> offer.host;
  std::string address;
  for (int port = 0; words >> address >> port;) offer.doors.emplace_back(address, port);
  return offer;
}

std::string names_of(const std::set<int>& ranks) {
  std::string text;
  for (const int rank : ranks) text += base::concat(rank, ' ');
  return text;
}

std::set<int> read_names(const std::string& text) {
  std::istringstream words(text);
  std::set<int> ranks;
  for (int rank = 0; words >> rank;) ranks.insert(rank);
  return ranks;
}

/// Calls `step` until it returns true, or the time is up.
template <class Step>
void try_for(base::Nanoseconds patience, const Step& step) {
  const base::SteadyClock clock;
  for (const auto end = clock.now() + patience; !step() && clock.now() < end;)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

/// The connections that are being made to one rank, one for each of its doors; the first that
/// stands is taken.
struct Attempt {
  int rank = 0;
  std::vector<base::TcpSocket> sockets;
  base::TcpSocket connected = {};

  bool is_over() {
    for (base::TcpSocket& socket : sockets) {
      if (!connected.is_open() && socket.is_connected()) connected = std::move(socket);
    }
    return connected.is_open() || std::none_of(sockets.begin(), sockets.end(),
                                               [](const auto& each) { return each.is_open(); });
  }
};

class Meeting {
 public:
  Meeting(const KeepAliveMeeting& meeting, KeepAliveOffer offer)
      : meeting_(meeting), offer_(std::move(offer)), own_(meeting.own.value()) {
    for (const auto& text : meeting.all_gather(offer_.text())) offers_.push_back(read_offer(text));
    connections_.resize(offers_.size());
  }

  std::vector<WatchedRank> connect() {
    call();
    const auto calls = meeting_.all_gather(names_of(connected()));
    std::set<int> callers;
    for (int rank = 0; rank < own_; ++rank) {
      if (read_names(calls[static_cast<std::size_t>(rank)]).contains(own_)) callers.insert(rank);
    }
    answer(callers);
    keep_answered(meeting_.all_gather(names_of(connected())));
    return watched();
  }

  /// Returns the machines of which some ranks are not watched from here.
  std::vector<std::string> unreached() const {
    std::set<std::string> hosts;
    for (std::size_t rank = 0; rank < offers_.size(); ++rank) {
      if (is_to_watch(static_cast<int>(rank)) && !answered_.contains(static_cast<int>(rank)))
        hosts.insert(offers_[rank].host);
    }
    return {hosts.begin(), hosts.end()};
  }

 private:
  /// Returns the position of a rank among the ranks of its machine, and how many these are.
  std::pair<int, int> place(int rank) const {
    const auto& machines = meeting_.machine_of_rank;
    const auto own = machines.begin() + rank;
    return {static_cast<int>(std::count(machines.begin(), own, *own)),
            static_cast<int>(std::count(machines.begin(), machines.end(), *own))};
  }

  /// True if this rank is to watch `rank`. It watches one rank or a few of each other machine, so
  /// that every rank is watched from every machine: a process may have few files open. Whoever
  /// finds a loss ends, and the others of its machine see that.
  bool is_to_watch(int rank) const {
    const auto& machines = meeting_.machine_of_rank;
    if (machines[static_cast<std::size_t>(rank)] == machines[meeting_.own.index()]) return false;
    const auto [own, ranks_here] = place(own_);
    const auto [other, ranks_there] = place(rank);
    const int pairs = std::min(ranks_here, ranks_there);
    return own % pairs == other % pairs;
  }

  std::set<int> connected() const {
    std::set<int> ranks;
    for (std::size_t rank = 0; rank < connections_.size(); ++rank) {
      if (connections_[rank].is_open()) ranks.insert(static_cast<int>(rank));
    }
    return ranks;
  }

  /// Connects to the higher ranks. An address that this machine has as well leads nowhere else, as
  /// that of the bridge of its containers.
  void call() {
    std::set<std::string> own_addresses;
    for (auto& each : base::network_addresses()) own_addresses.insert(std::move(each.address));
    std::vector<Attempt> attempts;
    for (int rank = own_ + 1; rank < static_cast<int>(offers_.size()); ++rank) {
      if (!is_to_watch(rank)) continue;
      Attempt& attempt = attempts.emplace_back(Attempt{rank, {}});
      for (const auto& [address, port] : offers_[static_cast<std::size_t>(rank)].doors)
        if (!own_addresses.contains(address))
          attempt.sockets.push_back(base::TcpSocket::to(address, port));
    }
    try_for(kPatience, [&] {
      // Each is looked at.
      return std::count_if(attempts.begin(), attempts.end(),
                           [](Attempt& attempt) { return !attempt.is_over(); }) == 0;
    });
    for (Attempt& attempt : attempts) {
      const Hello hello{meeting_.secret, own_, attempt.rank};
      if (attempt.connected.is_open() &&
          attempt.connected.send(std::as_bytes(std::span(&hello, 1))))
        connections_[static_cast<std::size_t>(attempt.rank)] = std::move(attempt.connected);
    }
  }

  /// Takes the connections of `callers`, who have called already; drops all others that come.
  void answer(std::set<int> callers) {
    try_for(kPatience, [&] {
      while (!callers.empty()) {
        base::TcpSocket socket = offer_.accept();
        if (!socket.is_open()) break;
        Hello hello{};
        if (!socket.receive(std::as_writable_bytes(std::span(&hello, 1)), kPatience / 10)) continue;
        if (hello != Hello{meeting_.secret, hello.from, own_} || callers.erase(hello.from) == 0)
          continue;
        connections_[static_cast<std::size_t>(hello.from)] = std::move(socket);
      }
      return callers.empty();
    });
  }

  /// Keeps the connections that both ends have.
  /// @param texts  for each rank, the ranks that it is connected to
  void keep_answered(const std::vector<std::string>& texts) {
    for (const int rank : connected()) {
      if (read_names(texts[static_cast<std::size_t>(rank)]).contains(own_)) answered_.insert(rank);
    }
  }

  std::vector<WatchedRank> watched() {
    std::vector<WatchedRank> ranks;
    for (const int rank : answered_) {
      const auto index = static_cast<std::size_t>(rank);
      ranks.push_back({GlobalRank(rank), offers_[index].process, offers_[index].host,
                       std::move(connections_[index])});
    }
    return ranks;
  }

  const KeepAliveMeeting& meeting_;
  KeepAliveOffer offer_;
  int own_;
  std::vector<Offered> offers_;               // by rank
  std::vector<base::TcpSocket> connections_;  // by rank
  std::set<int> answered_;
};

}  // namespace

KeepAliveOffer::KeepAliveOffer(const std::string& interface, int ranks) {
  const auto addresses = base::network_addresses(interface);
  if (!interface.empty() && addresses.empty()) {
    std::string others;
    for (const auto& each : base::network_addresses()) {
      others += others.empty() ? "" : ", ";
      others += base::concat(each.interface, " (", each.address, ")");
    }
    SMP_REQUIRE(false, "keep_alive_interface = ", interface, ": '", host_name(),
                "' has no interface of this name that is up and has an address; it has ",
                others.empty() ? "none" : others, "; name one that leads to the other machines.");
  }
  for (const auto& each : addresses) {
    auto listener = base::TcpListener::at(each.address, ranks);
    if (listener) doors_.push_back({each.address, std::move(*listener)});
  }
}

std::string KeepAliveOffer::text() const {
  auto text = base::concat(::getpid(), ' ', host_name());
  for (const Door& door : doors_)
    text += base::concat(' ', door.address, ' ', door.listener.port());
  return text;
}

base::TcpSocket KeepAliveOffer::accept() noexcept {
  for (Door& door : doors_) {
    base::TcpSocket socket = door.listener.accept();
    if (socket.is_open()) return socket;
  }
  return {};
}

std::unique_ptr<KeepAlive> connect_keep_alive(const KeepAliveMeeting& meeting, KeepAliveOffer offer,
                                              std::vector<std::string>& unreached) {
  Meeting ranks(meeting, std::move(offer));
  auto watched = ranks.connect();
  unreached = ranks.unreached();
  return std::make_unique<KeepAlive>(meeting.own, std::move(watched), meeting.options);
}

}  // namespace smp::d2d
