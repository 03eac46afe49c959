// d2d/watch/keep_alive_links.h: how ranks of different machines connect to watch each other.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/machine/tcp_socket.h"
#include "d2d/watch/keep_alive.h"

namespace smp::d2d {

/// Returns the text of every rank, on every rank. All call it, and it blocks until they have.
using AllGather = std::function<std::vector<std::string>(const std::string&)>;

/// The addresses at which this rank can be reached while the ranks connect; nobody listens after
/// that.
class KeepAliveOffer {
 public:
  /// @param interface  the network interface over which to be reached; empty: any
  /// @throws UsageError  this machine has no interface of that name.
  KeepAliveOffer(const std::string& interface, int ranks);

  /// Returns the addresses as text for the others.
  std::string text() const;
  /// Returns a connection that came; one that is not open if there is none.
  base::TcpSocket accept() noexcept;

 private:
  struct Door {
    std::string address;
    base::TcpListener listener;
  };
  std::vector<Door> doors_;
};

struct KeepAliveMeeting {
  GlobalRank own;
  std::vector<int> machine_of_rank;  ///< as MpiSession has it
  AllGather all_gather;
  std::uint64_t secret = 0;  ///< by which ranks of the job know each other
  KeepAliveOptions options;
};

/// Connects the ranks of different machines; the lower of two connects to the higher. All ranks of
/// the job call it.
/// @param unreached  set to the names of the machines that this rank could not connect to
/// @throws std::system_error  see KeepAlive; the others go on.
std::unique_ptr<KeepAlive> connect_keep_alive(const KeepAliveMeeting& meeting, KeepAliveOffer offer,
                                              std::vector<std::string>& unreached);

}  // namespace smp::d2d
