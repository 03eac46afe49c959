// server/recompute/offload.h: what calls keep that are computed again leaves the device meanwhile
// (paper App. H.3).
#pragma once

#include <ATen/core/Tensor.h>

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "server/recompute/copy_streams.h"
#include "server/recompute/host_pool.h"

namespace smp::server {

/// Sends tensors to the host when a call has kept them, and fetches them back before its backward.
/// Backwards are expected microbatch after microbatch, and in each from the last call to the first:
/// so all schedules run them. When one begins, those of the next `horizon` calls are fetched as
/// well; where it comes in another order, its tensors are fetched then.
///
/// Under pressure: what finds no room in the host's pool stays on the device. Where the device has
/// no room for what is fetched ahead, that is fetched when it is needed; and where it has none for
/// what is needed, what was fetched ahead makes room. Threads: any.
class Offload {
 public:
  struct Options {
    int horizon = 4;               ///< calls whose tensors come back ahead; 0: none
    std::int64_t pool_bytes = 0;   ///< of host memory, at most
    std::int64_t least_bytes = 0;  ///< what is smaller stays
  };
  /// A call that is computed again, by its place in the order of backwards.
  struct Place {
    int rank = 0;
    int microbatch = 0;
    std::int64_t from_last = 0;  ///< the later call of a microbatch has the lower one
    auto operator<=>(const Place&) const = default;
  };
  struct Counters {
    std::int64_t sent = 0;        ///< calls whose tensors have left
    std::int64_t stayed = 0;      ///< for lack of room on the host
    std::int64_t ahead = 0;       ///< fetched ahead
    std::int64_t late = 0;        ///< fetched when they were needed
    std::int64_t put_off = 0;     ///< not fetched ahead, for lack of room on the device
    std::int64_t given_back = 0;  ///< fetched ahead, and let go for one that was needed at once
  };
  class Parcel;

  Offload(const Options& options, std::unique_ptr<CopyStreams> streams);

  /// The one of this process; nullptr: nothing leaves the device.
  static std::shared_ptr<Offload> current();
  static void set_current(std::shared_ptr<Offload> offload);

  const Options& options() const noexcept { return options_; }
  c10::Device device() const { return streams_->device(); }
  Counters counters() const;
  std::int64_t pool_bytes() const;

  /// Returns the place of a call that is made now.
  Place next_place(int rank, int microbatch);

 private:
  friend class Parcel;

  bool send(Parcel& parcel, const std::vector<at::Tensor>& tensors);
  std::vector<at::Tensor> take(Parcel& parcel);
  void drop(Parcel& parcel) noexcept;
  void fetch(Parcel& parcel);
  void fetch_now(Parcel& parcel);
  bool free_leaving();
  bool give_back();
  void fetch_ahead(const Place& of);
  void note_full();
  void let_go();

  const Options options_;
  const std::unique_ptr<CopyStreams> streams_;
  mutable std::mutex mutex_;
  HostPool pool_;
  std::map<Place, Parcel*> away_;
  /// Device memory that is still read. It cannot be left to LibTorch's allocator to wait: that
  /// overlooks tensors that are copies on write.
  std::vector<std::pair<at::Tensor, CopyStreams::MarkPointer>> leaving_;
  std::int64_t calls_ = 0;
  Counters counters_;
};

/// The tensors of one call. Its memory on the host goes back when it ends. Threads: any.
class Offload::Parcel {
 public:
  /// Sends `tensors`, of one dimension and bytes, contiguous on the device: all or, if the pool has
  /// no room, none. The caller lets go of them. @return nullptr: none
  static std::unique_ptr<Parcel> send(const std::shared_ptr<Offload>& offload, const Place& place,
                                      const std::vector<at::Tensor>& tensors);
  ~Parcel() { offload_->drop(*this); }
  Parcel(const Parcel&) = delete;
  Parcel& operator=(const Parcel&) = delete;

  /// Returns the tensors, for the current stream, and has those of the next calls fetched. Once.
  std::vector<at::Tensor> take() { return offload_->take(*this); }

 private:
  friend class Offload;
  struct Piece {
    at::Tensor host;
    at::Tensor back;  // on the device again; undefined: not yet
    std::int64_t bytes;
    CopyStreams::MarkPointer last_copy;  // that uses `host`
  };
  Parcel(std::shared_ptr<Offload> offload, const Place& place)
      : offload_(std::move(offload)), place_(place) {}

  const std::shared_ptr<Offload> offload_;
  const Place place_;
  std::vector<Piece> pieces_;
  bool fetched_ = false;
};

}  // namespace smp::server
