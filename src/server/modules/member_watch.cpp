// server/modules/member_watch.cpp: two compares around torch::nn::Module's part, which caches the
// name.
#include "server/modules/member_watch.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace smp::server {

MemberWatch::MemberWatch(const OwnPart& own) : own_(own), end_(std::min(own.size, kMostBytes)) {
  end_ = std::max(end_, std::min(own.size, own.base + own.base_size));
  if (own.size <= own.base_size) return;  // no members
  picture_ = std::make_unique<char[]>(end_);
  std::memcpy(picture_.get(), own.object, end_);
}

/// Compares the bytes before and behind the part of torch::nn::Module with the picture.
bool MemberWatch::changed() noexcept {
  const std::size_t after = own_.base + own_.base_size;
  const auto equal = [&](std::size_t from, std::size_t to) {
    return std::memcmp(picture_.get() + from, own_.object + from, to - from) == 0;
  };
  const bool before = !equal(0, own_.base);
  if (!before && equal(after, end_)) return false;
  offset_ = before ? 0 : after;
  while (picture_[offset_] == own_.object[offset_]) ++offset_;
  std::memcpy(picture_.get(), own_.object, own_.base);
  std::memcpy(picture_.get() + after, own_.object + after, end_ - after);
  return true;
}

/// Notes a write. Several writes of one call count as one.
void MemberWatch::note_write(int microbatch) noexcept {
  if (row_ > 0 && microbatch == microbatch_ && generation_ == written_in_) return;
  earlier_ = std::exchange(microbatch_, microbatch);
  written_in_ = generation_;
  found_ |= ++row_ > 1;
}

/// A difference that is found here was written by a call in progress; if there is none, by other
/// code, and such a write is not state that the module keeps.
bool MemberWatch::enter(int microbatch) noexcept {
  if (changed() && active_ > 0) note_write(entered_);
  ++active_;
  entered_ = microbatch;
  return std::exchange(found_, false);
}

void MemberWatch::suspend(int microbatch) noexcept {
  if (changed()) note_write(microbatch);
}

bool MemberWatch::leave(int microbatch) noexcept {
  if (changed()) note_write(microbatch);
  if (--active_ > 0) return std::exchange(found_, false);
  if (written_in_ != generation_) row_ = 0;
  ++generation_;
  return std::exchange(found_, false);
}

}  // namespace smp::server
