// d2d/wires/completions.h: transfers that are done, until they are told.
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <vector>

#include "d2d/wire/wire.h"

namespace smp::d2d {

/// The transfers that are done, noted wherever a wire finds them, and told where it may: in
/// complete() and poll().
class Completions {
 public:
  void begin_send() noexcept { ++sends_; }
  void note_sent(Token token) { sent_.push_back(token); }
  void note_received(Token token) { received_.push_back(token); }
  /// The number of sends that were begun and are not told.
  std::size_t sends() const noexcept { return sends_; }

  /// Tells the handler what was noted before; it may start other transfers. Returns true if there
  /// was something.
  bool tell(WireHandler& handler) {
    if (sent_.empty() && received_.empty()) return false;
    telling_.swap(sent_);
    for (const auto token : telling_) {
      --sends_;
      handler.on_sent(token);
    }
    telling_.clear();
    telling_.swap(received_);
    for (const auto token : telling_) handler.on_received(token);
    telling_.clear();
    return true;
  }

 private:
  std::size_t sends_ = 0;
  std::vector<Token> sent_, received_;
  std::vector<Token> telling_;
};

}  // namespace smp::d2d
