// d2d/wires/neuron/neuron_device.h: LibTorch's device "neuron": tensors in the memory of a core.
// Threads: the rank's thread; tensors may be freed on any.
#pragma once

#include <c10/core/Device.h>

#include "d2d/wires/neuron/neuron_pool.h"
#include "d2d/wires/neuron/neuron_runtime.h"

namespace smp::d2d {

/// While one lives, LibTorch's private-use device is the memory of a pool, and the home device of
/// this process may be it. What it can do is what transport needs: tensors are made there, freed,
/// viewed, and copied from and to it; whoever computes on the core brings the operators, and then
/// the device as well. In that case nothing is registered here, and its storages are adopted by
/// NeuronPlaces.
class NeuronDevice {
 public:
  /// @param runtime, pool  outlive this; of one core
  /// @throws UsageError  LibTorch's private-use device is another one's, or another of these lives.
  NeuronDevice(NeuronRuntime& runtime, NeuronPool& pool);
  /// From then on no tensor is made or copied; those that still live are memory of nobody.
  ~NeuronDevice();
  NeuronDevice(const NeuronDevice&) = delete;
  NeuronDevice& operator=(const NeuronDevice&) = delete;

  static c10::Device device() noexcept { return {c10::DeviceType::PrivateUse1, 0}; }
};

}  // namespace smp::d2d
