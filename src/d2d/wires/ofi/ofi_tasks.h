// d2d/wires/ofi/ofi_tasks.h: the operations that an OfiWire gives libfabric to do, and the frames
// of memory for some of them. Threads: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "d2d/wires/ofi/ofi_endpoint.h"
#include "d2d/wires/ofi/ofi_memory.h"

namespace smp::d2d {

class OfiLoss;
struct OfiPeer;
struct OfiTransfer;

struct OfiTask : OfiOperation {
  enum class Kind : std::uint8_t { kFrame, kReceive, kWrite };
  Kind kind = Kind::kFrame;
  OfiPeer* peer = nullptr;  ///< of a receive: nobody yet
  OfiTransfer* transfer = nullptr;
  std::size_t bytes = 0;
  std::span<std::byte> frame;
};

/// Tasks to send frames, to receive them, and to write, each under way or free. The frames are
/// registered once: they are small, and used again and again.
class OfiTasks {
 public:
  /// @param endpoint     outlives this object
  /// @param most_frames  to send and to receive, each, if the endpoint takes as many
  OfiTasks(OfiEndpoint& endpoint, std::size_t frame_bytes, std::size_t most_frames);
  OfiTasks(const OfiTasks&) = delete;
  OfiTasks& operator=(const OfiTasks&) = delete;

  /// The name of all frames for libfabric.
  void* descriptor() const noexcept { return registration_.descriptor(); }
  /// Returns a free frame to send, the same until it is started; nullptr if there is none.
  OfiTask* free_frame() const noexcept {
    return free_frames_.empty() ? nullptr : free_frames_.back();
  }
  /// Returns a free write, the same until it is started.
  OfiTask& free_write();
  /// Notes that the frame, or the write, that is free next has been started.
  void note_started(OfiTask::Kind kind) noexcept;
  /// Notes that libfabric needs a task no longer.
  void note_ended(OfiTask& task);
  /// Gives libfabric all frames to receive that it does not have. Failures are noted in `loss`.
  void post_receives(OfiLoss& loss);

  std::size_t frames_in_flight() const noexcept { return frames_in_flight_; }
  /// Frames and writes that are under way.
  std::size_t in_flight() const noexcept { return frames_in_flight_ + writes_in_flight_; }

 private:
  OfiEndpoint& endpoint_;
  std::vector<std::byte> memory_;
  OfiMemory registration_;
  std::vector<std::unique_ptr<OfiTask>> tasks_;
  std::vector<OfiTask*> free_frames_, free_writes_;
  std::vector<OfiTask*> unposted_;  // receives
  std::size_t frames_in_flight_ = 0, writes_in_flight_ = 0;
};

}  // namespace smp::d2d
