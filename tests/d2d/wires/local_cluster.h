// Channels between the ranks of this process, over one local wire or several.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "d2d/channel/channel_cluster.h"
#include "d2d/wires/local/local_wire.h"
#include "fiber/sim_clock.h"

namespace smp::d2d {

/// Makes the routes of a rank.
using MakeRoutes = std::function<Routes(const std::shared_ptr<LocalHub>&, GlobalRank)>;

inline Routes one_local_wire(const std::shared_ptr<LocalHub>& hub, GlobalRank rank) {
  return std::make_unique<LocalWire>(hub, rank);
}

/// Control bytes over one wire and data over another.
inline Routes separate_planes(const std::shared_ptr<LocalHub>& hub, GlobalRank rank) {
  std::vector<WireUse> uses;
  uses.push_back({std::make_unique<LocalWire>(hub, rank), /*control=*/true, /*data=*/false});
  uses.push_back({std::make_unique<LocalWire>(hub, rank), /*control=*/false, /*data=*/true});
  return Routes(std::move(uses));
}

/// Pairs of neighbours have a wire for data of their own; both planes of both wires are in use.
inline Routes wires_of_pairs(const std::shared_ptr<LocalHub>& hub, GlobalRank rank) {
  const int first = rank.value() / 2 * 2;
  std::vector<WireUse> uses;
  uses.push_back(
      {std::make_unique<LocalWire>(hub, rank, Members({GlobalRank(first + 1), GlobalRank(first)})),
       /*control=*/first > 0, /*data=*/true});
  uses.push_back({std::make_unique<LocalWire>(hub, rank)});
  return Routes(std::move(uses));
}

/// All ranks, with or without a clock.
class LocalCluster : public Cluster {
 public:
  explicit LocalCluster(LocalOptions options, int ranks = 4,
                        const MakeRoutes& routes = one_local_wire)
      : hub_(std::make_shared<LocalHub>(ranks, options)), clock_(options.clock) {
    for (int rank = 0; rank < ranks; ++rank) {
      players_.push_back(std::make_unique<Player>(routes(hub_, GlobalRank(rank))));
    }
  }
  LocalHub& hub() { return *hub_; }
  Player& player(int rank) { return *players_[static_cast<std::size_t>(rank)]; }

 protected:
  void advance() override {
    if (clock_ != nullptr) clock_->advance();
    Cluster::advance();
  }

 private:
  std::shared_ptr<LocalHub> hub_;
  fiber::SimClock* clock_;
};

struct ClockHolder {
  fiber::SimClock clock{42};
};

}  // namespace smp::d2d
