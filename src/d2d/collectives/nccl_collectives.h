// d2d/collectives/nccl_collectives.h: collectives of GPUs by NCCL. Threads: the rank's thread only.
#pragma once

#include <c10/core/Device.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "d2d/collectives/device_collectives.h"
#include "d2d/collectives/nccl_library.h"
#include "d2d/wires/cuda/cuda_device.h"

namespace smp::d2d {

/// One NCCL communicator, which does not block, and a stream of its own: a collective waits there
/// for what computes its input, the streams of callers wait there for its result, by events, and
/// nothing else waits for either. That keeps memory safe as well: LibTorch uses it again in the
/// order of the stream it was set aside on, which is the caller's.
class NcclCollectives final : public DeviceCollectives {
 public:
  /// @param nccl    outlives this
  /// @param device  as LibTorch counts it; `gpu` is that one
  /// @throws PeerLostError  NCCL is too old, or CUDA refuses.
  NcclCollectives(const NcclLibrary& nccl, std::unique_ptr<CudaDevice> gpu, c10::Device device);
  ~NcclCollectives() override;

  const char* name() const noexcept override { return "NCCL"; }
  c10::Device device() const noexcept override { return device_; }
  std::string identity() override { return gpu_->identity(); }
  std::string make_id() override;
  void connect(const std::string& id, int position, int size) override;
  bool connected() override { return !is_busy("connecting"); }
  bool takes(CollectiveKind kind, c10::ScalarType dtype) const noexcept override;
  std::unique_ptr<DeviceCall> prepare(CollectiveKind kind, at::Tensor input,
                                      at::Tensor result) override;
  void close() noexcept override;
  void abort() noexcept override;

 private:
  class Call;
  struct Elements {  // as NCCL counts them
    int type = 0;
    std::size_t count = 0;
  };
  static Elements elements_of(CollectiveKind kind, const at::Tensor& tensor);

  void require(int result, const char* what) const;
  bool is_busy(const char* what) const;
  void start(CollectiveKind kind, const at::Tensor& input, const at::Tensor& result);
  void exchange_parts(const at::Tensor& input, const at::Tensor& result);
  void end(bool in_good_order) noexcept;
  CudaDevice::Event take_event();

  const NcclLibrary& nccl_;
  std::unique_ptr<CudaDevice> gpu_;
  const c10::Device device_;
  CudaDevice::Stream stream_ = nullptr;
  bool left_behind_ = false;  // a thread still ends the communicator, and its work on the stream
  std::vector<CudaDevice::Event> free_events_;
  std::vector<at::Tensor> unfinished_;  // of calls that failed after they were launched
  void* communicator_ = nullptr;
  int size_ = 0;
};

/// Makes a rank's end on a GPU of CUDA. @throws PeerLostError  NCCL or CUDA is not there, or too
/// old.
std::unique_ptr<DeviceCollectives> make_nccl_collectives(c10::Device device);

}  // namespace smp::d2d
