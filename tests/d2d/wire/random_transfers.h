// Many transfers between the ends of a wire, in any order: the same plan on all ranks, from a seed.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "d2d/wire/members.h"
#include "d2d/wire/wire_end.h"
#include "d2d/wire/wire_pattern.h"

namespace smp::d2d {

struct PlannedTransfer {
  GlobalRank source, destination;
  std::size_t bytes = 0;
  /// The receiver learns of it from control bytes, as in a channel; else it knows of it already.
  bool is_announced = false;
};

/// Mostly short ones, between any two.
inline std::vector<PlannedTransfer> random_transfers(const Members& members, std::size_t count,
                                                     std::uint64_t seed,
                                                     std::size_t longest = 100'000) {
  std::mt19937_64 random(seed);
  std::vector<PlannedTransfer> plan;
  const auto size = static_cast<std::uint64_t>(members.size());
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t source = random() % size;
    const std::uint64_t destination = (source + 1 + random() % (size - 1)) % size;
    const std::size_t most = random() % 64 == 0 ? longest : std::size_t{1} << random() % 12;
    plan.push_back({members[static_cast<int>(source)], members[static_cast<int>(destination)],
                    1 + random() % most, random() % 2 == 0});
  }
  return plan;
}

/// What one rank does for a plan: sends and receives, in an order of its own. Transfers and tokens
/// are numbered as in the plan.
class TransferPart {
 public:
  enum class Side { kSends, kReceives };

  /// @param plan  outlives this, as `end` does
  TransferPart(WireEnd& end, const std::vector<PlannedTransfer>& plan, std::uint64_t seed)
      : end_(end), plan_(plan), random_(seed + static_cast<std::uint64_t>(end.rank())) {
    for (std::size_t i = 0; i < plan.size(); ++i) {
      if (plan[i].source == end.wire().rank()) {
        left_.push_back({i, Side::kSends});
        ++sends_;
      }
      if (plan[i].destination != end.wire().rank()) continue;
      ++receives_;
      if (!plan[i].is_announced) left_.push_back({i, Side::kReceives});
    }
    end.answer = [this](GlobalRank source, const Bytes& bytes) { on_announced(source, bytes); };
  }
  TransferPart(const TransferPart&) = delete;
  TransferPart& operator=(const TransferPart&) = delete;

  /// Starts up to `most` of what can be started, drawn at random.
  void act(std::size_t most) {
    if (overwrites_sent) overwrite();
    for (; most > 0 && !left_.empty(); --most) {
      std::swap(left_[random_() % left_.size()], left_.back());
      const Action action = left_.back();
      left_.pop_back();
      action.side == Side::kSends ? send(action.index) : receive(action.index);
      if (on_start) on_start(action.index, action.side);
    }
  }
  bool done() const {
    return left_.empty() && end_.sent.size() == sends_ && end_.received.size() == receives_;
  }
  /// All that came is what was sent, and each was told once.
  void expect_right() {
    expect_each_once(end_.sent, Side::kSends);
    expect_each_once(end_.received, Side::kReceives);
    for (auto& [index, place] : places_) {
      const std::string difference = pattern_of(index).difference(place.bytes());
      EXPECT_EQ(difference, "") << describe(index);
      EXPECT_TRUE(place.intact()) << describe(index) << ": written beside its place";
    }
  }

  /// What has left is changed at once, as its owner may.
  bool overwrites_sent = false;
  std::function<void(std::size_t index, Side side)> on_start;
  std::function<void(std::size_t index)> on_announcement;

 private:
  struct Action {
    std::size_t index;
    Side side;
  };

  WirePattern pattern_of(std::size_t index) const {
    return {plan_[index].source.value(), plan_[index].destination.value(), index};
  }
  std::string describe(std::size_t index) const {
    return base::concat("transfer ", index, " of rank ", plan_[index].source, " to rank ",
                        plan_[index].destination);
  }
  void announce(std::size_t index) {
    Bytes bytes(sizeof index);
    std::memcpy(bytes.data(), &index, sizeof index);
    end_.post(plan_[index].destination, bytes);
  }
  void send(std::size_t index) {
    const PlannedTransfer& transfer = plan_[index];
    const bool before = random_() % 2 == 0;
    if (transfer.is_announced && before) announce(index);
    Bytes& bytes = sending_[index] = pattern_of(index).bytes(transfer.bytes);
    end_.wire().send(bytes, transfer.destination, index, index);
    if (transfer.is_announced && !before) announce(index);
  }
  void receive(std::size_t index) {
    GuardedPlace& place = places_[index] = GuardedPlace(plan_[index].bytes);
    end_.wire().receive(place.bytes(), plan_[index].source, index, index);
  }
  void on_announced(GlobalRank source, const Bytes& bytes) {
    std::size_t index = 0;
    ASSERT_EQ(bytes.size(), sizeof index);
    std::memcpy(&index, bytes.data(), sizeof index);
    ASSERT_LT(index, plan_.size());
    EXPECT_EQ(plan_[index].source, source);
    EXPECT_EQ(plan_[index].destination, end_.wire().rank());
    left_.push_back({index, Side::kReceives});
    if (on_announcement) on_announcement(index);
  }
  void overwrite() {
    for (; overwritten_ < end_.sent.size(); ++overwritten_) {
      Bytes& bytes = sending_[end_.sent[overwritten_]];
      std::fill(bytes.begin(), bytes.end(), std::byte{0xee});
    }
  }
  void expect_each_once(std::vector<Token> told, Side side) const {
    std::sort(told.begin(), told.end());
    std::vector<Token> expected;
    for (std::size_t i = 0; i < plan_.size(); ++i) {
      const auto rank = side == Side::kSends ? plan_[i].source : plan_[i].destination;
      if (rank == end_.wire().rank()) expected.push_back(i);
    }
    EXPECT_EQ(told, expected) << (side == Side::kSends ? "sent" : "received");
  }

  WireEnd& end_;
  const std::vector<PlannedTransfer>& plan_;
  std::mt19937_64 random_;
  std::vector<Action> left_;
  std::size_t sends_ = 0, receives_ = 0;
  std::size_t overwritten_ = 0;  // of what the end was told to have left
  std::map<std::size_t, Bytes> sending_;
  std::map<std::size_t, GuardedPlace> places_;
};

}  // namespace smp::d2d
