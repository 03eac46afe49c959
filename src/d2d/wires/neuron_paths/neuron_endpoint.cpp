// d2d/wires/neuron_paths/neuron_endpoint.cpp: see the header.
#include "d2d/wires/neuron_paths/neuron_endpoint.h"

#include <algorithm>
#include <cstdlib>

#include "base/check.h"
#include "smp/error.h"

namespace smp::d2d {
namespace {

/// What EFA needs for memory of devices, unless the environment says otherwise: without the second
/// the first read between two ranks of a host hangs.
OfiEndpointOptions with_device_memory() {
  ::setenv("FI_EFA_USE_DEVICE_RDMA", "1", /*overwrite=*/0);
  ::setenv("FI_EFA_ENABLE_SHM_TRANSFER", "0", /*overwrite=*/0);
  OfiEndpointOptions options;
  options.device_memory = true;
  return options;
}

}  // namespace

NeuronEndpoint::NeuronEndpoint(NeuronRuntime& runtime, const NeuronPlaces& places)
    : NeuronEndpoint(runtime, places, with_device_memory()) {}

NeuronEndpoint::NeuronEndpoint(NeuronRuntime& runtime, const NeuronPlaces& places,
                               const OfiEndpointOptions& options)
    : OfiEndpoint(options), runtime_(runtime) {
  watching_ = places.watch([this](const NeuronLibrary::Tensor* freed) {
    std::erase_if(regions_, [freed](const Region& region) { return region.tensor == freed; });
  });
}

NeuronEndpoint::~NeuronEndpoint() = default;

NeuronEndpoint::Region& NeuronEndpoint::region_of(const NeuronPlace& place) {
  const auto found = std::find_if(regions_.begin(), regions_.end(), [&](const Region& region) {
    return region.tensor == place.tensor;
  });
  if (found != regions_.end()) return *found;
  runtime_.require_usable("nrt_tensor_get_va");
  auto* const start = static_cast<std::byte*>(runtime_.library().tensor_get_va(place.tensor));
  SMP_REQUIRE_AS(PeerLostError, start != nullptr, "rank ", runtime_.rank(), ", Neuron core ",
                 runtime_.claim().absolute(place.core),
                 ": its memory has no address (nrt_tensor_get_va tells none), by which networks "
                 "know it");
  const std::span bytes(start, runtime_.library().tensor_get_size(place.tensor));
  return regions_.emplace_back(Region{place.tensor, bytes, register_tensor(bytes)});
}

std::span<std::byte> NeuronEndpoint::bytes_of(const NeuronPlace& place, std::size_t size) {
  return region_of(place).bytes.subspan(place.offset, size);
}

const NeuronEndpoint::Region* NeuronEndpoint::find(
    std::span<const std::byte> bytes) const noexcept {
  const auto found = std::find_if(regions_.begin(), regions_.end(), [&](const Region& region) {
    return bytes.data() >= region.bytes.data() &&
           bytes.data() + bytes.size() <= region.bytes.data() + region.bytes.size();
  });
  return found == regions_.end() ? nullptr : &*found;
}

OfiMemory NeuronEndpoint::register_target(std::span<std::byte> bytes) {
  const auto* const region = find(bytes);
  if (region == nullptr) return OfiEndpoint::register_target(bytes);
  return region->memory.part(static_cast<std::uint64_t>(bytes.data() - region->bytes.data()));
}

OfiMemory NeuronEndpoint::register_source(std::span<const std::byte> bytes) {
  const auto* const region = find(bytes);
  if (region == nullptr) return OfiEndpoint::register_source(bytes);
  return region->memory.part(static_cast<std::uint64_t>(bytes.data() - region->bytes.data()));
}

}  // namespace smp::d2d
