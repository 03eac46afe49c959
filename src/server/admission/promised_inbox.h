// server/admission/promised_inbox.h: tensors that other ranks send to requests which wait for them
// here: arguments and gradients (docs/design.md, Promised outputs).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "server/admission/waiting_list.h"

namespace smp::server {

/// Each may come before its request. Threads: the rank's; everything is safe in a poll.
class PromisedInbox {
 public:
  using Entry = WaitingList::Entry;
  /// @param starter   of rank `self`: asked for outputs of its own
  /// @param complete  told of a request once all of its tensors are in it; may call clear()
  PromisedInbox(PpRank self, RequestStarter& starter, std::function<void(Entry)> complete)
      : self_(self), starter_(starter), complete_(std::move(complete)) {}

  /// A request has come that tensors are promised to. May complete it.
  void expect(Entry entry);
  /// A tensor for one of them, or several if it came ahead; they may come later themselves, or
  /// never if it came ahead.
  void take(PassedOn&& message);

  /// Requests whose tensors are here without them, and tensors that came ahead.
  std::size_t size() const noexcept { return too_early_.size() + ahead_.size(); }
  void clear() noexcept;

 private:
  /// An output that comes ahead: the name of the request that makes it, and its index.
  using AheadName = std::pair<RequestName, std::uint32_t>;
  /// A request of the same caller, and which input.
  struct AheadFor {
    RequestId consumer;
    std::uint32_t index;
  };
  bool comes_when_asked(const PromisedInput& input) const noexcept;
  void ask(const RequestName& name, const PromisedInput& input);
  void await_ahead(const AheadName& name, const AheadFor& to);
  void take_ahead(PassedOn&& message);
  void give_ahead(const AheadName& name, const AheadFor& to);
  static void put(Waiting& waiting, PassedOn&& message);

  const PpRank self_;
  RequestStarter& starter_;
  const std::function<void(Entry)> complete_;
  std::map<RequestName, Entry> awaiting_;
  std::map<RequestName, std::vector<PassedOn>> too_early_;  // before their requests
  std::map<AheadName, PassedOn> ahead_;  // came, and as many requests as `times` will take it
  std::map<AheadName, std::vector<AheadFor>> missing_ahead_;  // to which requests they go
  bool cleared_ = false;
};

}  // namespace smp::server
