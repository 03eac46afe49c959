// api/rank/public_call.h: which call of the program a rank is in when it waits for others: they
// must make the same.
#pragma once

#include "api/rank/rank.h"

namespace smp {

/// While an object lives, what its rank waits for outside of steps is said to be a part of this
/// call of the program: "smp::save_safetensors". Of several the latest counts. Without a session
/// nothing happens. Threads: the rank's.
class PublicCall {
 public:
  /// @param name  as the program writes it; lasts as long as the process
  explicit PublicCall(const char* name) noexcept
      : rank_(Rank::find_current()), outer_(rank_ ? rank_->exchange_call(name) : nullptr) {}
  ~PublicCall() {
    if (rank_ != nullptr) rank_->exchange_call(outer_);
  }
  PublicCall(const PublicCall&) = delete;
  PublicCall& operator=(const PublicCall&) = delete;

 private:
  Rank* const rank_;
  const char* const outer_;
};

}  // namespace smp
