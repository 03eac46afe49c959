// d2d/wires/cuda/cuda_driver.h: a GPU of this machine through CUDA's driver, in the context that
// LibTorch uses as well. Threads: the rank's thread only.
#pragma once

#include <c10/core/Device.h>

#include "d2d/wires/cuda/cuda_device.h"
#include "d2d/wires/cuda/cuda_library.h"

namespace smp::d2d {

class CudaDriver final : public CudaDevice {
 public:
  /// @param device  as LibTorch counts them
  /// @throws PeerLostError  there is no driver, or no such device.
  explicit CudaDriver(c10::Device device);
  ~CudaDriver() override;

  std::string identity() override;
  std::byte* allocate(std::size_t bytes) override;
  void free(std::byte* memory) noexcept override;
  Handle export_memory(std::byte* memory) override;
  std::byte* open_memory(const Handle& handle) override;
  void close_memory(std::byte* memory) noexcept override;
  void write(std::byte* to, const std::byte* from, std::size_t bytes) override;
  void read(std::byte* to, const std::byte* from, std::size_t bytes) override;
  Stream make_stream() override;
  void free_stream(Stream stream) noexcept override;
  Stream current_stream() override;
  void copy(std::byte* to, const std::byte* from, std::size_t bytes, Stream stream) override;
  Event make_event(bool shared) override;
  void free_event(Event event) noexcept override;
  Handle export_event(Event event) override;
  Event open_event(const Handle& handle) override;
  void record(Event event, Stream stream) override;
  void wait(Stream stream, Event event) override;
  bool done(Event event) override;

 private:
  class InContext;
  void require(int result, const char* what) const;

  const CudaLibrary& cuda_;
  c10::Device device_;
  int number_ = 0;  // the driver's
  void* context_ = nullptr;
};

/// Returns a text that is equal for two processes that compute on one device, as far as the driver
/// tells: the UUID of a GPU, whatever number it has in either; else its number.
std::string identity_of(c10::Device device);

}  // namespace smp::d2d
