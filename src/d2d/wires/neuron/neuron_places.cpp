// d2d/wires/neuron/neuron_places.cpp: see the header.
#include "d2d/wires/neuron/neuron_places.h"

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

}  // namespace smp::d2d
