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

/// A TCP connection; its descriptor is closed with the object, and in forked children at once: the
/// other end sees this process end, whatever it has forked. One thread may send while another one
/// receives.
class TcpSocket {
 public:
  TcpSocket() = default;
  explicit TcpSocket(int file) noexcept;
  TcpSocket(TcpSocket&& other) noexcept : file_(std::exchange(other.file_, -1)) {}
  TcpSocket& operator=(TcpSocket&& other) noexcept;
  ~TcpSocket();

  /// Begins to connect; then wait for is_connected(). The socket is not open if the connection was
  /// refused at once. @param address  a numeric address, of IPv4 or IPv6
  static TcpSocket to(const std::string& address, int port) noexcept;

  bool is_open() const noexcept { return file_ >= 0; }
  int file() const noexcept { return file_; }
  /// True once the connection is established. A socket whose connection was refused is closed.
  bool is_connected() noexcept;

  /// Sends `bytes`. Returns false unless the kernel took all of them at once.
  bool send(std::span<const std::byte> bytes) noexcept;
  /// Fills `bytes`. Returns false unless all of them have come within `patience` nanoseconds.
  bool receive(std::span<std::byte> bytes, Nanoseconds patience) noexcept;

  /// Turns on keep-alive: while nothing moves, the kernel asks the other machine for a sign of
  /// life, and ends the connection (ETIMEDOUT, or what the network said) after `silence`, 5 s to an
  /// hour.
  void keep_alive(Nanoseconds silence) noexcept;

 private:
  int file_ = -1;
};

/// Accepts connections to one address of this machine, while it lives.
class TcpListener {
 public:
  /// Listens at `address`, on a free port; nothing if the machine refuses.
  /// @param most  the most connections that may wait to be accepted
  static std::optional<TcpListener> at(const std::string& address, int most) noexcept;

  int port() const noexcept { return port_; }
  /// Accepts a connection that waits. The socket is not open if none does.
  TcpSocket accept() noexcept;

 private:
  TcpListener(TcpSocket socket, int port) noexcept : socket_(std::move(socket)), port_(port) {}

  TcpSocket socket_;
  int port_;
};

/// An address of this machine, at an interface that is up and reaches other machines.
struct NetworkAddress {
  std::string interface;
  std::string address;  ///< a number
};
/// Returns the addresses of this machine, without those for itself ("lo") or for one cable
/// (fe80::).
/// @param interface  returns only the addresses of this interface, of any kind; empty: all
std::vector<NetworkAddress> network_addresses(const std::string& interface = {});

}  // namespace smp::base
