// d2d/wires/cuda/cuda_device.h: the few things that a wire between processes asks of CUDA, so that
// their order can be tested on machines without a GPU. Threads: the rank's thread only.
#pragma once

#include <array>
#include <cstddef>
#include <string>

namespace smp::d2d {

/// One GPU, as one process sees it. Work is put on streams and done later, in the order of each
/// stream; nothing here waits for it but write() and read().
/// Every call throws PeerLostError with CUDA's own words where CUDA refuses.
class CudaDevice {
 public:
  /// A handle to memory or an event, as CUDA passes it between processes.
  using Handle = std::array<std::byte, 64>;
  using Stream = void*;
  using Event = void*;

  CudaDevice() = default;
  virtual ~CudaDevice() = default;
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  /// Returns a text that is the same in all processes that use this GPU, and in no others.
  virtual std::string identity() = 0;

  // ---- memory; addresses mean nothing to the host ----

  virtual std::byte* allocate(std::size_t bytes) = 0;
  /// Frees memory, once no other process has it open.
  virtual void free(std::byte* memory) noexcept = 0;
  /// @param memory  as allocate() gave it
  virtual Handle export_memory(std::byte* memory) = 0;
  /// Opens memory of another process, once.
  virtual std::byte* open_memory(const Handle& handle) = 0;
  virtual void close_memory(std::byte* memory) noexcept = 0;
  /// Copies from and to host memory, and returns when the bytes are there. Does not wait for
  /// streams.
  virtual void write(std::byte* to, const std::byte* from, std::size_t bytes) = 0;
  virtual void read(std::byte* to, const std::byte* from, std::size_t bytes) = 0;

  // ---- streams ----

  virtual Stream make_stream() = 0;
  virtual void free_stream(Stream stream) noexcept = 0;
  /// Returns the stream on which LibTorch puts what the calling thread computes now.
  virtual Stream current_stream() = 0;
  /// Copies within this device, or to one whose memory is open here.
  virtual void copy(std::byte* to, const std::byte* from, std::size_t bytes, Stream stream) = 0;

  // ---- events, each at most once on its way ----

  /// @param shared  may be exported
  virtual Event make_event(bool shared) = 0;
  virtual void free_event(Event event) noexcept = 0;
  virtual Handle export_event(Event event) = 0;
  /// Opens an event of another process.
  virtual Event open_event(const Handle& handle) = 0;
  /// Records `event`: it happens when all that is on `stream` now is done.
  virtual void record(Event event, Stream stream) = 0;
  /// Lets all that comes on `stream` from now on wait for the last record of `event`, in whichever
  /// process that was.
  virtual void wait(Stream stream, Event event) = 0;
  /// True if the last record of `event` has happened.
  virtual bool done(Event event) = 0;
};

}  // namespace smp::d2d
