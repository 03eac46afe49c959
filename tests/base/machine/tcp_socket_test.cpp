// tests/base/machine/tcp_socket_test.cpp: connections over the loopback interface.
#include "base/machine/tcp_socket.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <array>
#include <thread>

namespace smp::base {
namespace {

using testing::Each;
using testing::Field;
using testing::IsEmpty;

constexpr Nanoseconds kLong = 10 * kSecond;

struct Pair {
  TcpSocket one, other;
};

TcpSocket accepted(TcpListener& listener) {
  for (;;) {
    TcpSocket socket = listener.accept();
    if (socket.is_open()) return socket;
    std::this_thread::yield();
  }
}

Pair connected(const std::string& address = "127.0.0.1") {
  auto listener = TcpListener::at(address, 1);
  if (!listener) return {};
  Pair pair{TcpSocket::to(address, listener->port()), {}};
  pair.other = accepted(*listener);
  while (!pair.one.is_connected() && pair.one.is_open()) std::this_thread::yield();
  return pair;
}

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

int option(const TcpSocket& socket, int level, int name) {
  int value = -1;
  socklen_t size = sizeof value;
  EXPECT_EQ(getsockopt(socket.file(), level, name, &value, &size), 0);
  return value;
}

TEST(TcpSocket, CarriesBytesBothWays) {
  std::vector<std::string> addresses{"127.0.0.1"};
  if (TcpListener::at("::1", 1)) addresses.emplace_back("::1");
  for (const auto& address : addresses) {
    Pair pair = connected(address);
    std::array<char, 5> got{};
    ASSERT_TRUE(pair.one.send(bytes_of("hello")));
    ASSERT_TRUE(pair.other.receive(std::as_writable_bytes(std::span(got)), kLong));
    EXPECT_EQ(std::string(got.data(), 5), "hello");
    ASSERT_TRUE(pair.other.send(bytes_of("again")));
    ASSERT_TRUE(pair.one.receive(std::as_writable_bytes(std::span(got)), kLong));
    EXPECT_EQ(std::string(got.data(), 5), "again");
  }
}

TEST(TcpSocket, WaitsForTheRestOnlyAsLongAsItMay) {
  Pair pair = connected();
  std::array<std::byte, 4> got{};
  ASSERT_TRUE(pair.one.send(bytes_of("abc")));
  EXPECT_FALSE(pair.other.receive(got, 20 * kMillisecond));
}

TEST(TcpSocket, ReceivesNothingFromOneThatIsClosed) {
  Pair pair = connected();
  std::array<std::byte, 4> got{};
  pair.one = {};
  EXPECT_FALSE(pair.other.receive(got, 3600 * kSecond));
}

TEST(TcpSocket, ClosesWhatWasRefused) {
  int port = 0;
  {
    auto listener = TcpListener::at("127.0.0.1", 1);
    ASSERT_TRUE(listener);
    port = listener->port();
  }
  TcpSocket socket = TcpSocket::to("127.0.0.1", port);
  while (socket.is_open()) {
    EXPECT_FALSE(socket.is_connected());
    std::this_thread::yield();
  }
}

TEST(TcpSocket, ConnectsToNumbersOnly) {
  EXPECT_FALSE(TcpSocket::to("localhost", 1).is_open());
  EXPECT_FALSE(TcpSocket::to("node 2", 1).is_open());
  EXPECT_FALSE(TcpListener::at("localhost", 1));
}

/// Several questions may go unanswered.
TEST(TcpSocket, TheKernelAsksWithinTheSilence) {
  for (const int seconds : {5, 6, 15, 3600}) {
    Pair pair = connected();
    pair.one.keep_alive(seconds * kSecond);
    EXPECT_EQ(option(pair.one, SOL_SOCKET, SO_KEEPALIVE), 1);
    const int idle = option(pair.one, IPPROTO_TCP, TCP_KEEPIDLE);
    EXPECT_GE(idle, 1);
    EXPECT_LE(idle + 3 * option(pair.one, IPPROTO_TCP, TCP_KEEPINTVL), seconds);
    EXPECT_EQ(option(pair.one, IPPROTO_TCP, TCP_USER_TIMEOUT), 1000 * seconds);
    EXPECT_EQ(option(pair.other, SOL_SOCKET, SO_KEEPALIVE), 0);
  }
}

TEST(TcpListener, HasNobodyWhileNobodyCalls) {
  auto listener = TcpListener::at("127.0.0.1", 1);
  ASSERT_TRUE(listener);
  EXPECT_FALSE(listener->accept().is_open());
}

TEST(NetworkAddresses, AreThoseThatOthersReach) {
  EXPECT_THAT(network_addresses(), Each(Field(&NetworkAddress::interface, testing::Ne("lo"))));
  const auto own = network_addresses("lo");
  ASSERT_THAT(own, testing::Not(IsEmpty()));
  EXPECT_THAT(own, Each(Field(&NetworkAddress::interface, "lo")));
  EXPECT_EQ(own.front().address, "127.0.0.1");
  EXPECT_THAT(network_addresses("no such"), IsEmpty());
}

}  // namespace
}  // namespace smp::base
