// Wires between machines, made between the processes of a job, for the contracts of wires and
// channels.
#pragma once

#include <gtest/gtest.h>

#include <memory>

#include "base/clock.h"
#include "d2d/channel/channel_cluster.h"
#include "d2d/job/job_wires.h"
#include "d2d/job/network_wires.h"
#include "d2d/job/shared_mpi_session.h"
#include "d2d/wire/wire_contract.h"

namespace smp::d2d {

inline constexpr base::Nanoseconds kNetworkDeadline = 60 * base::kSecond;

/// For wire_contract.h.
template <auto kConnect>
class NetworkMpiWires : public WireCluster {
 public:
  NetworkMpiWires() { ends_.push_back(std::make_unique<WireEnd>(kConnect(shared_mpi_session()))); }
  ~NetworkMpiWires() override { EXPECT_TRUE(ends_.front()->wire().close(kNetworkDeadline)); }
};

/// As between machines. For channel_contract.h and channel_tensors_contract.h.
template <Network kNetwork>
class NetworkMpiCluster : public Cluster {
 public:
  NetworkMpiCluster() {
    players_.push_back(std::make_unique<Player>(
        fastest_routes(shared_mpi_session(), {.shared_memory = false, .network = kNetwork})));
  }
  ~NetworkMpiCluster() override { EXPECT_TRUE(players_.front()->channel->close(kNetworkDeadline)); }
};

}  // namespace smp::d2d
