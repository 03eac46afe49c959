// d2d/channel/channel_cluster.h: ranks with channels, over any wires, and what reaches them.
//
// A Cluster plays one, several or all of the ranks; the tests give every rank it plays the same
// part.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "d2d/channel/channel.h"

namespace smp::d2d {

/// What is sent and arrives. The first bytes of the text travel as header, the rest as body.
struct Frame {
  std::string text;
  std::vector<at::Tensor> tensors;
};

/// A rank that this process plays, and what has reached it.
struct Player {
  struct Mail {
    int source;
    Frame frame;
  };
  static constexpr std::size_t kHeaderBytes = 6;

  explicit Player(Routes routes) : channel(std::make_unique<Channel>(std::move(routes))) {
    channel->set_failure_handler([this](const std::string& what) { failures.push_back(what); });
    channel->set_receiver(Port::kCollectives, [this](GlobalRank source, ArrivedFrame&& frame) {
      collectives.push_back({source.value(), to_frame(std::move(frame))});
    });
    listen();
  }
  void listen() {
    on_arrival([this](int source, Frame&& frame) {
      arrived.push_back({source, std::move(frame)});
    });
  }
  void on_arrival(std::function<void(int, Frame&&)> receiver, Port port = Port::kServer) {
    channel->set_receiver(port, [receiver](GlobalRank source, ArrivedFrame&& frame) {
      receiver(source.value(), to_frame(std::move(frame)));
    });
  }
  static Frame to_frame(ArrivedFrame&& arrived) {
    EXPECT_LE(arrived.header.size(), kHeaderBytes);
    std::string text(reinterpret_cast<const char*>(arrived.header.data()), arrived.header.size());
    text.append(reinterpret_cast<const char*>(arrived.body.data()), arrived.body.size());
    return {std::move(text), std::move(arrived.tensors)};
  }
  void send(int peer, const Frame& frame, Port port = Port::kServer) {
    const std::string_view text = frame.text;
    const std::string_view header = text.substr(0, kHeaderBytes);
    channel->send(GlobalRank(peer), port, std::as_bytes(std::span(header)),
                  text.substr(header.size()), frame.tensors);
  }
  int rank() const { return channel->rank().value(); }

  /// How many ranks have sent at least `count` frames.
  int sources_with(int count) const {
    std::map<int, int> frames;
    for (const Mail& mail : arrived) ++frames[mail.source];
    return std::count_if(frames.begin(), frames.end(),
                         [count](const auto& entry) { return entry.second >= count; });
  }
  /// Removes the first `count` frames from `source`; a quicker rank may have begun what comes next.
  std::vector<Frame> take(int source, int count) {
    std::vector<Frame> taken;
    for (auto mail = arrived.begin(); mail != arrived.end() && count > 0;) {
      const bool wanted = mail->source == source;
      if (wanted) taken.push_back(std::move(mail->frame));
      count -= wanted;
      mail = wanted ? arrived.erase(mail) : mail + 1;
    }
    return taken;
  }

  std::vector<Mail> arrived;
  std::vector<Mail> collectives;  // at the other port
  std::vector<std::string> failures;
  std::unique_ptr<Channel> channel;
};

/// Connected ranks. Subclasses connect them and move messages on.
class Cluster {
 public:
  virtual ~Cluster() = default;

  std::vector<std::unique_ptr<Player>>& players() { return players_; }
  int size() const { return players_.front()->channel->size(); }

  /// Moves messages until `done`, which is asked of each player, holds for all and all have
  /// drained.
  void run_until(const std::function<bool(Player&)>& done) {
    const base::SteadyClock clock;
    const base::Nanoseconds end = clock.now() + 60 * base::kSecond;
    while (!all_done(done)) {
      SMP_ASSERT(clock.now() < end, "the channels did not get there within 60 s; ", state());
      advance();
    }
    advance();  // who has a progress thread is told by the poll that follows
  }
  void run_until_arrived(std::size_t frames) {
    run_until([frames](Player& player) { return player.arrived.size() >= frames; });
  }

 protected:
  virtual void advance() {
    for (auto& player : players_) player->channel->poll();
  }
  std::vector<std::unique_ptr<Player>> players_;

 private:
  std::string state() const {
    std::string text;
    for (const auto& player : players_) {
      text += base::concat("rank ", player->rank(), " has got ", player->arrived.size(), " frames",
                           player->channel->drained() ? "" : ", has not drained");
      for (const std::string& failure : player->failures) text += ", says: " + failure;
      text += "; ";
    }
    return text;
  }
  bool all_done(const std::function<bool(Player&)>& done) {
    for (auto& player : players_) {
      if (!player->channel->drained() || !done(*player)) return false;
    }
    return true;
  }
};

}  // namespace smp::d2d
