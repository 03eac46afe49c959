// d2d/wires/neuron/neuron_probe_memory.cpp: see the header.
#include "d2d/wires/neuron/neuron_probe_memory.h"

namespace smp::d2d {

NeuronProbeMemory::~NeuronProbeMemory() {
  for (auto* const block : blocks_) pool_.free(block);
}

std::span<std::byte> NeuronProbeMemory::allocate(std::size_t bytes) {
  blocks_.push_back(pool_.allocate(bytes));
  return {blocks_.back(), bytes};
}

void NeuronProbeMemory::write(std::span<std::byte> to, const std::vector<std::byte>& bytes) {
  const auto place = pool_.require(to.first(bytes.size()));
  runtime_.require_usable("nrt_tensor_write");
  runtime_.require(
      runtime_.library().tensor_write(place.tensor, bytes.data(), place.offset, bytes.size()),
      "trying a path", "nrt_tensor_write", place.core);
}

std::vector<std::byte> NeuronProbeMemory::read(std::span<const std::byte> from) {
  std::vector<std::byte> bytes(from.size());
  const auto place = pool_.require(from);
  runtime_.require_usable("nrt_tensor_read");
  runtime_.require(
      runtime_.library().tensor_read(place.tensor, bytes.data(), place.offset, bytes.size()),
      "trying a path", "nrt_tensor_read", place.core);
  return bytes;
}

}  // namespace smp::d2d
