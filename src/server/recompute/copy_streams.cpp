// server/recompute/copy_streams.cpp: streams and events of any device that LibTorch has.
#include "server/recompute/copy_streams.h"

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace smp::server {
namespace {

class TorchStreams final : public CopyStreams {
 public:
  explicit TorchStreams(c10::Device device)
      : device_(device),
        guard_(device.type()),
        out_(guard_.getStreamFromGlobalPool(device)),
        in_(guard_.getStreamFromGlobalPool(device)) {}

  c10::Device device() const override { return device_; }

  at::Tensor host_memory(std::int64_t bytes) override {
    return at::empty({bytes}, at::TensorOptions().dtype(at::kByte).pinned_memory(true));
  }

  at::Tensor device_memory(std::int64_t bytes) override {
    return at::empty({bytes}, at::TensorOptions(device_).dtype(at::kByte));
  }

  MarkPointer to_host(const at::Tensor& from, const at::Tensor& to) override {
    c10::Event computed(device_.type());
    computed.record(guard_.getStream(device_));
    computed.block(out_);
    return copy(from, to, out_);
  }

  MarkPointer to_device(const at::Tensor& from, const at::Tensor& to,
                        const MarkPointer& ready) override {
    c10::Event allocated(device_.type());  // its memory may have served the current stream before
    allocated.record(guard_.getStream(device_));
    allocated.block(in_);
    event_of(ready).block(in_);
    // Freed memory is not used again before the stream is done with it.
    guard_.recordDataPtrOnStream(to.storage().data_ptr(), in_);
    return copy(from, to, in_);
  }

  void wait(const MarkPointer& mark) override { event_of(mark).block(guard_.getStream(device_)); }
  bool done(const MarkPointer& mark) override { return event_of(mark).query(); }

 private:
  struct EventMark final : Mark {
    explicit EventMark(c10::DeviceType type) : event(type) {}
    c10::Event event;
  };
  static c10::Event& event_of(const MarkPointer& mark) {
    return static_cast<EventMark&>(*mark).event;
  }

  MarkPointer copy(const at::Tensor& from, const at::Tensor& to, const c10::Stream& stream) {
    struct Current {
      c10::impl::VirtualGuardImpl& guard;
      c10::Stream outer;
      ~Current() { guard.exchangeStream(outer); }
    } const current{guard_, guard_.exchangeStream(stream)};
    to.copy_(from, /*non_blocking=*/true);
    auto mark = std::make_shared<EventMark>(device_.type());
    mark->event.record(stream);
    return mark;
  }

  const c10::Device device_;
  c10::impl::VirtualGuardImpl guard_;
  const c10::Stream out_, in_;
};

}  // namespace

std::unique_ptr<CopyStreams> make_copy_streams(c10::Device device) {
  return std::make_unique<TorchStreams>(device);
}

}  // namespace smp::server
