// server/running/outgoing_calls.h: the calls of an execution that leave for other ranks.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "server/protocol/ids.h"
#include "server/running/call_way.h"
#include "server/running/open_call.h"

namespace smp::server {

/// The remote calls of one execution: which of them returned before they ended, and where its
/// requests stand in their row. Threads: the rank's.
class OutgoingCalls {
 public:
  /// @param rows  the number of rows given to executions of this rank; outlives this object
  OutgoingCalls(ModuleId module, std::uint64_t& rows) noexcept : rows_(rows), way_(module) {}
  OutgoingCalls(const OutgoingCalls&) = delete;
  OutgoingCalls& operator=(const OutgoingCalls&) = delete;

  /// The calls that left so far.
  CallWay& way() noexcept { return way_; }
  /// The row (ForwardRequest::row) of the requests that the execution makes from now on; never 0.
  std::uint64_t row() noexcept { return row_ == 0 ? row_ = ++rows_ : row_; }
  /// Takes the place in that row of the next request to `owner`.
  std::uint32_t next_place(PpRank owner);
  /// Gives the place last taken for `owner` back, because the request could not be sent.
  void give_back_place(PpRank owner) noexcept { --places_[owner.index()]; }

  // Calls that returned before they ended.

  void add(std::shared_ptr<OpenCall> call) { open_.push_back(std::move(call)); }
  const std::vector<std::shared_ptr<OpenCall>>& open() const noexcept { return open_; }
  bool has_open() const noexcept { return !open_.empty(); }
  /// Suspends until all open calls have ended. @throws what the first of them in program order
  /// threw.
  void finish();
  /// Suspends until all calls have ended and the values of all promised tensors that somebody still
  /// holds are here. Called when the execution ends, since it may return such tensors or leave them
  /// in members.
  void fetch_all();
  /// Gives all calls up, because nobody will wait for them.
  void abandon() noexcept;

 private:
  std::uint64_t& rows_;
  CallWay way_;
  std::uint64_t row_ = 0;
  std::vector<std::uint32_t> places_;  // next ones, by owner
  std::vector<std::shared_ptr<OpenCall>> open_, finished_;
};

}  // namespace smp::server
