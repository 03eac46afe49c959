// server/recompute/copy_streams.h: copies between a device and the host, beside what it computes.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <memory>

namespace smp::server {

/// Two streams of a device: one for copies that leave it, one for copies that come. The host waits
/// for none of them. Threads: one at a time.
class CopyStreams {
 public:
  /// The end of a copy, as streams see it.
  struct Mark {
    virtual ~Mark() = default;
  };
  using MarkPointer = std::shared_ptr<Mark>;

  virtual ~CopyStreams() = default;
  virtual c10::Device device() const = 0;
  /// Returns so many bytes of host memory that the device can reach.
  virtual at::Tensor host_memory(std::int64_t bytes) = 0;
  /// Returns so many bytes of new memory on the device. @throws c10::OutOfMemoryError
  virtual at::Tensor device_memory(std::int64_t bytes) = 0;
  /// Starts to copy `from`, once the current stream has computed it. It must stay until that is
  /// done.
  virtual MarkPointer to_host(const at::Tensor& from, const at::Tensor& to) = 0;
  /// Starts to copy to the device, once `ready` is over. @param to  of device_memory()
  virtual MarkPointer to_device(const at::Tensor& from, const at::Tensor& to,
                                const MarkPointer& ready) = 0;
  /// Has what the current stream computes from now on wait for `mark`.
  virtual void wait(const MarkPointer& mark) = 0;
  /// True if that is over.
  virtual bool done(const MarkPointer& mark) = 0;
};

/// Those of LibTorch, with pinned memory.
std::unique_ptr<CopyStreams> make_copy_streams(c10::Device device);

}  // namespace smp::server
