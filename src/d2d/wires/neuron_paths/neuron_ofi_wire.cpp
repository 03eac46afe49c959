// d2d/wires/neuron_paths/neuron_ofi_wire.cpp: see the header.
#include "d2d/wires/neuron_paths/neuron_ofi_wire.h"

#include <utility>

namespace smp::d2d {

NeuronOfiWire::NeuronOfiWire(std::unique_ptr<OfiWire> wire, NeuronEndpoint& endpoint,
                             const NeuronPlaces& places)
    : Wire(wire->rank(), wire->members()),
      wire_(std::move(wire)),
      endpoint_(endpoint),
      places_(places) {
  wire_->set_handler(this);
}

std::span<std::byte> NeuronOfiWire::real(std::span<const std::byte> bytes) {
  return endpoint_.bytes_of(places_.require(bytes), bytes.size());
}

void NeuronOfiWire::send(std::span<const std::byte> bytes, GlobalRank peer, TransferId id,
                         Token token) {
  wire_->send(real(bytes), peer, id, token);
}

void NeuronOfiWire::receive(std::span<std::byte> bytes, GlobalRank peer, TransferId id,
                            Token token) {
  wire_->receive(real(bytes), peer, id, token);
}

}  // namespace smp::d2d
