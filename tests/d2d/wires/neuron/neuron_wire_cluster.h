// Ranks of this process, each with a core of the played runtime, for the contract of wires.
#pragma once

#include <memory>
#include <vector>

#include "d2d/wire/wire_contract.h"
#include "d2d/wires/local/local_wire.h"
#include "d2d/wires/neuron/neuron_runtime.h"
#include "d2d/wires/neuron/played_neuron.h"

namespace smp::d2d {

/// Three cores that one process has claimed, and memory of each.
struct PlayedCores {
  static constexpr int kRanks = 3;
  explicit PlayedCores(int minor)
      : neuron(minor), runtime(neuron.library(), GlobalRank(0), neuron.claim(kRanks, 1)) {
    for (int i = 0; i < kRanks; ++i) {
      places.push_back(std::make_unique<HostAsNeuronPlaces>(neuron, RelativeCore(i)));
    }
  }
  PlayedNeuron neuron;
  NeuronRuntime runtime;
  std::vector<std::unique_ptr<HostAsNeuronPlaces>> places;
  std::shared_ptr<LocalHub> hub = std::make_shared<LocalHub>(kRanks);
};

class NeuronWireCluster : public WireCluster {
 public:
  explicit NeuronWireCluster(int minor) : cores_(minor) {}
  ~NeuronWireCluster() override {
    for (int i = 0; i < 200; ++i) advance();  // a local wire that is left hears nothing more
    for (auto& end : ends_) EXPECT_TRUE(end->wire().close(base::kSecond));
    ends_.clear();
    cores_.neuron.expect_empty(PlayedCores::kRanks);
  }
  MemoryKind kind() const override { return MemoryKind::kNeuron; }

 protected:
  PlayedCores cores_;
};

}  // namespace smp::d2d
