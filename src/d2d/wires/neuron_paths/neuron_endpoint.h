// d2d/wires/neuron_paths/neuron_endpoint.h: libfabric with memory of a Neuron core, which it reads
// and writes by itself. Threads: the rank's thread only.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "d2d/wires/neuron/neuron_places.h"
#include "d2d/wires/neuron/neuron_runtime.h"
#include "d2d/wires/ofi/ofi_endpoint.h"

namespace smp::d2d {

/// Registers each tensor of the runtime whole, when bytes of it are first named, and once: the
/// driver allows one attachment at a time. A registration ends with the memory, not with its
/// address, so it is dropped right before the tensor is freed.
class NeuronEndpoint : public OfiEndpoint {
 public:
  /// After the runtime has started: libfabric looks once whether there is such memory.
  /// @param runtime  outlives this
  /// @throws PeerLostError  no provider of libfabric here takes memory of devices.
  NeuronEndpoint(NeuronRuntime& runtime, const NeuronPlaces& places);
  ~NeuronEndpoint() override;

  /// Returns the bytes as libfabric knows them.
  /// @throws PeerLostError  the runtime tells no address, or the tensor cannot be registered.
  std::span<std::byte> bytes_of(const NeuronPlace& place, std::size_t size);
  OfiMemory register_target(std::span<std::byte> bytes) override;
  OfiMemory register_source(std::span<const std::byte> bytes) override;

 protected:
  NeuronEndpoint(NeuronRuntime& runtime, const NeuronPlaces& places,
                 const OfiEndpointOptions& options);
  /// Registers the memory of a tensor.
  virtual OfiMemory register_tensor(std::span<std::byte> bytes) { return register_neuron(bytes); }
  /// Drops all registrations: for classes whose own part they need.
  void drop_all() noexcept { regions_.clear(); }

 private:
  struct Region {
    NeuronLibrary::Tensor* tensor = nullptr;
    std::span<std::byte> bytes{};
    OfiMemory memory{};
  };
  const Region* find(std::span<const std::byte> bytes) const noexcept;
  Region& region_of(const NeuronPlace& place);

  NeuronRuntime& runtime_;
  std::vector<Region> regions_;
  std::shared_ptr<const NeuronPlaces::OnFree> watching_;
};

}  // namespace smp::d2d
