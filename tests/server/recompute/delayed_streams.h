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
  at::Tensor host_memory(std::int64_t bytes) override {
    TORCH_CHECK(host_blocks-- > 0, "the played host is full");
    return garbage(bytes);
  }
  at::Tensor device_memory(std::int64_t bytes) override {
    if (full || *blocks_ == most_blocks) {
      TORCH_CHECK_WITH(OutOfMemoryError, false, "the played device is full");
    }
    ++*blocks_;
    const auto memory = garbage(bytes);
    const auto freed = [memory, blocks = blocks_](void*) { --*blocks; };
    return at::from_blob(memory.data_ptr(), {bytes}, freed, at::kByte);
  }
  MarkPointer to_host(const at::Tensor& from, const at::Tensor& to) override {
    const c10::weak_intrusive_ptr source(from.getIntrusivePtr());  // whoever sends it keeps it
    return later([source, to] {
      if (const auto still = source.lock()) to.copy_(at::Tensor(still));
    });
  }
  MarkPointer to_device(const at::Tensor& from, const at::Tensor& to,
                        const MarkPointer& ready) override {
    const c10::weak_intrusive_ptr target(to.getIntrusivePtr());  // it may be freed before
    return later([this, from, target, ready] {
      wait(ready);
      if (const auto still = target.lock()) at::Tensor(still).copy_(from);
    });
  }
  void wait(const MarkPointer& mark) override {
    auto copy = std::exchange(static_cast<Later&>(*mark).copy, nullptr);
    if (copy) copy();
  }
  bool done(const MarkPointer& mark) override { return !static_cast<Later&>(*mark).copy; }

  bool full = false;
  int most_blocks = 1'000'000;  ///< of the device, at one time
  int host_blocks = 1'000'000;  ///< that the host gives

 private:
  const std::shared_ptr<int> blocks_ = std::make_shared<int>(0);  // of the device
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
