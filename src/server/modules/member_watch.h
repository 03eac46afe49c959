// server/modules/member_watch.h: who writes the members of one module while it runs. Tells what a
// trial run did not show: data-dependent state, and state of programs that had no trial.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "smp/state.h"

namespace smp::server {

/// One picture of the module's own bytes, compared where a call enters and leaves. A module may
/// fill a cache: that is one call that writes, or now and then one. It keeps state if it writes in
/// two calls in a row. Bytes that members own elsewhere (elements of a vector) are not seen, their
/// sizes and addresses are. Neither allocates nor throws after its construction. Threads: the
/// rank's.
class MemberWatch {
 public:
  /// The number of bytes of an object that are watched. Beyond these are large arrays inside of it,
  /// which would cost more to compare than a call.
  static constexpr std::size_t kMostBytes = 1024;

  MemberWatch() = default;  // watches nothing
  explicit MemberWatch(const OwnPart& own);

  bool on() const noexcept { return picture_ != nullptr; }

  /// Returns true if members differ from the picture, and updates the picture.
  bool changed() noexcept;

  /// Begins a call of `microbatch`. @return true if a write was found and the module keeps state.
  bool enter(int microbatch) noexcept;
  /// Notes writes of a call of `microbatch` whose fiber gives way to others.
  void suspend(int microbatch) noexcept;
  /// Ends a call of `microbatch`. @return true if a write was found and the module keeps state
  bool leave(int microbatch) noexcept;

  /// The microbatch of the last write; earlier_microbatch() is that of the write before.
  int microbatch() const noexcept { return microbatch_; }
  int earlier_microbatch() const noexcept { return earlier_; }
  /// The offset in the object, in bytes, of the first byte that the last write changed.
  std::size_t offset() const noexcept { return offset_; }
  std::size_t size() const noexcept { return own_.size; }

 private:
  void note_write(int microbatch) noexcept;

  OwnPart own_;
  std::size_t end_ = 0;  // of what is watched
  std::unique_ptr<char[]> picture_;
  int active_ = 0;                // calls that have not left
  int entered_ = -1;              // microbatch of the last one that entered
  std::uint64_t generation_ = 0;  // how often no call was active
  std::uint64_t written_in_ = 0;  // generation of the last write
  int row_ = 0;                   // calls in a row that wrote, of different microbatches or times
  int microbatch_ = -1;           // of the last write
  int earlier_ = -1;              // of the one before
  std::size_t offset_ = 0;        // of the last write
  bool found_ = false;            // since it was said last
};

}  // namespace smp::server
