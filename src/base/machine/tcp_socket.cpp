// base/machine/tcp_socket.cpp: see the header.
#include "base/machine/tcp_socket.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>

#include "base/forked_child.h"

namespace smp::base {
namespace {

struct Endpoint {
  sockaddr_storage address{};
  socklen_t size = 0;

  const sockaddr* get() const noexcept { return reinterpret_cast<const sockaddr*>(&address); }
};

/// Returns the endpoint of a numeric address; its size is 0 if `address` is not numeric.
Endpoint endpoint(const std::string& address, int port) noexcept {
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  Endpoint result;
  if (getaddrinfo(address.c_str(), std::to_string(port).c_str(), &hints, &found) != 0)
    return result;
  std::copy_n(reinterpret_cast<const std::byte*>(found->ai_addr), found->ai_addrlen,
              reinterpret_cast<std::byte*>(&result.address));
  result.size = found->ai_addrlen;
  freeaddrinfo(found);
  return result;
}

TcpSocket socket_for(const Endpoint& end) noexcept {
  return TcpSocket(
      ::socket(end.address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP));
}

template <class Value>
void set(int file, int level, int option, Value value) noexcept {
  ::setsockopt(file, level, option, &value, sizeof value);
}

/// Waits for `events`, or the end of the other side. @return whether one of them came in time
bool await(int file, short events, Nanoseconds patience) noexcept {
  pollfd waits{file, events, 0};
  const auto milliseconds = static_cast<int>((patience + kMillisecond - 1) / kMillisecond);
  int found = 0;
  do found = ::poll(&waits, 1, milliseconds);
  while (found < 0 && errno == EINTR);
  return found == 1;
}

bool leads_to_others(const ifaddrs& entry) noexcept {
  if ((entry.ifa_flags & IFF_LOOPBACK) != 0) return false;
  if (entry.ifa_addr->sa_family != AF_INET6) return true;
  return !IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(entry.ifa_addr)->sin6_addr);
}

/// Returns an address of IPv4 or IPv6 as numeric text; empty if it is of another kind.
std::string text_of(const sockaddr& address) {
  const bool four = address.sa_family == AF_INET;
  if (!four && address.sa_family != AF_INET6) return {};
  char text[NI_MAXHOST];
  const socklen_t size = four ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  return getnameinfo(&address, size, text, sizeof text, nullptr, 0, NI_NUMERICHOST) == 0 ? text
                                                                                         : "";
}

}  // namespace

TcpSocket::TcpSocket(int file) noexcept : file_(file) {
  if (file_ >= 0) keep_from_children(file_);
}

TcpSocket& TcpSocket::operator=(TcpSocket&& other) noexcept {
  std::swap(file_, other.file_);
  return *this;
}

TcpSocket::~TcpSocket() {
  if (file_ >= 0) close_own(file_);
}

TcpSocket TcpSocket::to(const std::string& address, int port) noexcept {
  const Endpoint end = endpoint(address, port);
  if (end.size == 0) return {};
  TcpSocket socket = socket_for(end);
  if (!socket.is_open()) return socket;
  if (::connect(socket.file_, end.get(), end.size) != 0 && errno != EINPROGRESS) return {};
  return socket;
}

bool TcpSocket::is_connected() noexcept {
  if (!is_open() || !await(file_, POLLOUT, 0)) return false;
  int error = 0;
  socklen_t size = sizeof error;
  ::getsockopt(file_, SOL_SOCKET, SO_ERROR, &error, &size);
  if (error != 0) *this = {};
  return error == 0;
}

bool TcpSocket::send(std::span<const std::byte> bytes) noexcept {
  return ::send(file_, bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
         static_cast<ssize_t>(bytes.size());
}

bool TcpSocket::receive(std::span<std::byte> bytes, Nanoseconds patience) noexcept {
  const SteadyClock clock;
  const Nanoseconds end = clock.now() + patience;
  while (!bytes.empty()) {
    const auto got = ::recv(file_, bytes.data(), bytes.size(), 0);
    if (got > 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(got));
      continue;
    }
    const bool may_come = got < 0 && (errno == EAGAIN || errno == EINTR);
    if (!may_come || !await(file_, POLLIN, std::max<Nanoseconds>(0, end - clock.now())))
      return false;
  }
  return true;
}

/// The kernel sends the first keep-alive probe after half of `silence`, and more of them during the
/// other half; it counts in whole seconds. It waits as long for acknowledgements of data sent.
void TcpSocket::keep_alive(Nanoseconds silence) noexcept {
  constexpr int kQuestions = 5;
  const auto seconds = static_cast<int>(silence / kSecond);
  set(file_, SOL_SOCKET, SO_KEEPALIVE, 1);
  set(file_, IPPROTO_TCP, TCP_KEEPIDLE, std::max(1, seconds / 2));
  set(file_, IPPROTO_TCP, TCP_KEEPINTVL, std::max(1, seconds / (2 * kQuestions)));
  set(file_, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<unsigned>(silence / kMillisecond));
}

std::optional<TcpListener> TcpListener::at(const std::string& address, int most) noexcept {
  Endpoint end = endpoint(address, 0);
  if (end.size == 0) return std::nullopt;
  TcpSocket socket = socket_for(end);
  if (!socket.is_open() || ::bind(socket.file(), end.get(), end.size) != 0 ||
      ::listen(socket.file(), most) != 0)
    return std::nullopt;
  auto* const own = reinterpret_cast<sockaddr*>(&end.address);
  if (::getsockname(socket.file(), own, &end.size) != 0) return std::nullopt;
  const auto port = end.address.ss_family == AF_INET
                        ? reinterpret_cast<const sockaddr_in*>(own)->sin_port
                        : reinterpret_cast<const sockaddr_in6*>(own)->sin6_port;
  return TcpListener(std::move(socket), ntohs(port));
}

TcpSocket TcpListener::accept() noexcept {
  return TcpSocket(::accept4(socket_.file(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
}

std::vector<NetworkAddress> network_addresses(const std::string& interface) {
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) return {};
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> entries(first, &freeifaddrs);
  std::vector<NetworkAddress> addresses;
  for (const auto* entry = first; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0) continue;
    if (interface.empty() ? !leads_to_others(*entry) : interface != entry->ifa_name) continue;
    auto text = text_of(*entry->ifa_addr);
    if (!text.empty()) addresses.push_back({entry->ifa_name, std::move(text)});
  }
  return addresses;
}

}  // namespace smp::base
