// d2d/wires/neuron/neuron_probe_memory.h: memory of a Neuron core for a probe of a wire.
// Threads: the rank's thread only.
#pragma once

#include <vector>

#include "d2d/wire/wire_probe.h"
#include "d2d/wires/neuron/neuron_pool.h"
#include "d2d/wires/neuron/neuron_runtime.h"

namespace smp::d2d {

/// Blocks of a pool, which this does not outlive.
class NeuronProbeMemory final : public ProbeMemory {
 public:
  NeuronProbeMemory(NeuronRuntime& runtime, NeuronPool& pool) : runtime_(runtime), pool_(pool) {}
  ~NeuronProbeMemory() override;
  NeuronProbeMemory(const NeuronProbeMemory&) = delete;
  NeuronProbeMemory& operator=(const NeuronProbeMemory&) = delete;

  std::span<std::byte> allocate(std::size_t bytes) override;
  void write(std::span<std::byte> to, const std::vector<std::byte>& bytes) override;
  std::vector<std::byte> read(std::span<const std::byte> from) override;

 private:
  NeuronRuntime& runtime_;
  NeuronPool& pool_;
  std::vector<std::byte*> blocks_;
};

}  // namespace smp::d2d
