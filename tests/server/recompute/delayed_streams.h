// Streams of a device that is played: a copy happens only when somebody waits for it, and until
// then its target holds garbage. What nobody waits for is seen in the results.
#pragma once

#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include <functional>
#include <memory>
#include <utility>

#include "server/recompute/copy_streams.h"

namespace smp::server {

/// The host's memory stands for the device's.
class DelayedStreams final : public CopyStreams {
 public:
  c10::Device device() const override { return c10::kCPU; }
  at::Tensor host_memory(std::int64_t bytes) override { return garbage(bytes); }
  at::Tensor device_memory(std::int64_t bytes) override {
    if (full) TORCH_CHECK_WITH(OutOfMemoryError, false, "the played device is full");
    return garbage(bytes);
  }
  MarkPointer to_host(const at::Tensor& from, const at::Tensor& to) override {
    return later([from, to] { to.copy_(from); });
  }
  MarkPointer to_device(const at::Tensor& from, const at::Tensor& to,
                        const MarkPointer& ready) override {
    return later([this, from, to, ready] {
      wait(ready);
      to.copy_(from);
    });
  }
  void wait(const MarkPointer& mark) override {
    auto copy = std::exchange(static_cast<Later&>(*mark).copy, nullptr);
    if (copy) copy();
  }
  bool done(const MarkPointer& mark) override { return !static_cast<Later&>(*mark).copy; }

  bool full = false;

 private:
  struct Later final : Mark {
    std::function<void()> copy;
  };
  static MarkPointer later(std::function<void()> copy) {
    auto mark = std::make_shared<Later>();
    mark->copy = std::move(copy);
    return mark;
  }
  static at::Tensor garbage(std::int64_t bytes) { return at::full({bytes}, 0xFF, at::kByte); }
};

}  // namespace smp::server
