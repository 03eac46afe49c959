// base/machine/tcp_socket.h: connections to other machines of a job, without waiting longer than
// one says.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"

namespace smp::base {

/// A file that is closed with it. One thread may send while another one receives.
class TcpSocket {
 public:
  TcpSocket() = default;
  explicit TcpSocket(int file) noexcept : file_(file) {}
  TcpSocket(TcpSocket&& other) noexcept : file_(std::exchange(other.file_, -1)) {}
  TcpSocket& operator=(TcpSocket&& other) noexcept;
  ~TcpSocket();

  /// Begins to connect; await is_connected(). Not open: it was refused at once.
  /// @param address  a number, of IPv4 or IPv6
  static TcpSocket to(const std::string& address, int port) noexcept;

  bool is_open() const noexcept { return file_ >= 0; }
  int file() const noexcept { return file_; }
  /// Whether the connection stands. One that was refused is closed.
  bool is_connected() noexcept;

  /// False unless all of it could be handed over at once.
  bool send(std::span<const std::byte> bytes) noexcept;
  /// False unless all of it has come in time.
  bool receive(std::span<std::byte> bytes, Nanoseconds patience) noexcept;

  /// From now on the kernel asks the other machine's for a sign of life while nothing moves, and
  /// ends the connection (ETIMEDOUT, or what the network said) after `silence`, 5 s to an hour.
  void keep_alive(Nanoseconds silence) noexcept;

 private:
  int file_ = -1;
};

/// Takes connections to one address of this machine, while it lives.
class TcpListener {
 public:
  /// At a port that is free; nothing: the machine refuses.
  /// @param most  connections that wait to be taken
  static std::optional<TcpListener> at(const std::string& address, int most) noexcept;

  int port() const noexcept { return port_; }
  /// One that waits. Not open: there is none.
  TcpSocket accept() noexcept;

 private:
  TcpListener(TcpSocket socket, int port) noexcept : socket_(std::move(socket)), port_(port) {}

  TcpSocket socket_;
  int port_;
};

/// Of this machine, where an interface that is up reaches others.
struct NetworkAddress {
  std::string interface;
  std::string address;  ///< a number
};
/// Without those that a machine has for itself ("lo") or for one cable (fe80::).
/// @param interface  only this one's, whichever it is; empty: all
std::vector<NetworkAddress> network_addresses(const std::string& interface = {});

}  // namespace smp::base
