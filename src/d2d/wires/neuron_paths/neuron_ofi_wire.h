// d2d/wires/neuron_paths/neuron_ofi_wire.h: tensors between Neuron cores over libfabric, from
// memory of one into that of the other. Threads: the rank's thread only; nothing here blocks.
#pragma once

#include <memory>

#include "d2d/wire/wire.h"
#include "d2d/wires/neuron/neuron_places.h"
#include "d2d/wires/neuron_paths/neuron_endpoint.h"
#include "d2d/wires/ofi/ofi_wire.h"

namespace smp::d2d {

/// A wire of libfabric that is told where the runtime has the bytes which tensors show.
class NeuronOfiWire final : public Wire, private WireHandler {
 public:
  /// @param endpoint  that of `wire`
  /// @param places    outlives this
  NeuronOfiWire(std::unique_ptr<OfiWire> wire, NeuronEndpoint& endpoint,
                const NeuronPlaces& places);
  ~NeuronOfiWire() override { wire_->set_handler(nullptr); }

  const char* name() const noexcept override { return "neuron_ofi"; }
  bool reaches(MemoryKind kind) const noexcept override { return kind == MemoryKind::kNeuron; }
  using Wire::reaches;
  BufferPool& buffers() noexcept override { return wire_->buffers(); }
  void post(GlobalRank peer, ByteBuffer&& bytes) override { wire_->post(peer, std::move(bytes)); }
  void send(std::span<const std::byte> bytes, GlobalRank peer, TransferId id, Token token) override;
  void receive(std::span<std::byte> bytes, GlobalRank peer, TransferId id, Token token) override;
  bool complete() override { return with_stir(wire_->complete()); }
  bool poll() override { return with_stir(wire_->poll()); }
  void check_links() override { wire_->check_links(); }
  bool drained() const noexcept override { return wire_->drained(); }
  bool leave() override { return wire_->leave(); }

 private:
  void on_control(GlobalRank source, ByteBuffer&& bytes) override {
    handler().on_control(source, std::move(bytes));
  }
  void on_sent(Token token) override { handler().on_sent(token); }
  void on_received(Token token) override { handler().on_received(token); }
  std::span<std::byte> real(std::span<const std::byte> bytes);
  bool with_stir(bool moved) {
    if (wire_->take_stir()) note_stir();
    return moved;
  }

  std::unique_ptr<OfiWire> wire_;
  NeuronEndpoint& endpoint_;
  const NeuronPlaces& places_;
};

}  // namespace smp::d2d
