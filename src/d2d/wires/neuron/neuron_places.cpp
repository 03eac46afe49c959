// d2d/wires/neuron/neuron_places.cpp: see the header.
#include "d2d/wires/neuron/neuron_places.h"

#include <utility>

#include "base/check.h"

namespace smp::d2d {

NeuronPlace NeuronPlaces::require(std::span<const std::byte> bytes) const {
  const auto place = find(bytes.data());
  SMP_ASSERT(place.has_value(), bytes.size(), " bytes at ", static_cast<const void*>(bytes.data()),
             ", which is no address of Neuron memory");
  SMP_ASSERT(bytes.size() <= place->room, bytes.size(), " bytes of Neuron memory at ",
             static_cast<const void*>(bytes.data()), ", of which only ", place->room,
             " belong to the tensor");
  return *place;
}

std::shared_ptr<const NeuronPlaces::OnFree> NeuronPlaces::watch(OnFree on_free) const {
  std::erase_if(watching_, [](const auto& each) { return each.expired(); });
  auto kept = std::make_shared<const OnFree>(std::move(on_free));
  watching_.push_back(kept);
  return kept;
}

void NeuronPlaces::about_to_free(NeuronLibrary::Tensor* tensor) const {
  for (const auto& each : watching_) {
    if (const auto on_free = each.lock()) (*on_free)(tensor);
  }
}

}  // namespace smp::d2d
