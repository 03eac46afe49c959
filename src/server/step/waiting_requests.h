// server/step/waiting_requests.h: requests that cannot start yet: tensors promised to them have not
// come, or an earlier request of the same caller runs (docs/design.md, Promised outputs). Threads:
// the rank's; everything is safe in a poll.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/protocol/ids.h"
#include "server/protocol/message.h"
#include "server/step/kept_outputs.h"

namespace smp::server {

/// The requests that one execution makes run one after the other on this rank, as in one process:
/// modules here may share state. Requests of others do not wait for them.
class WaitingRequests {
 public:
  /// A row of requests: the caller's rank, and ForwardRequest::row.
  using Row = std::pair<int, std::uint64_t>;
  static constexpr Row kNoRow{-1, 0};

  struct Forward {
    PpRank source;
    ForwardRequest request;
    ExecutionId execution;
    Row row = kNoRow;
  };
  /// Called with a request when nothing holds it back. `input_failed` is true if one of its inputs
  /// failed, so that the request must fail too.
  using Start = std::function<void(Forward&& request, bool input_failed)>;
  /// @param ask  asks for an output that this rank keeps
  WaitingRequests(Start start, std::function<void(PpRank caller, const PassOn&)> ask)
      : start_(std::move(start)), ask_(std::move(ask)) {}

  /// Adds a request, and starts it as soon as nothing holds it back.
  /// @param self  this rank
  void add(Forward&& request, PpRank self);
  /// Takes a tensor for one request, or for several if it came ahead. The requests may come after
  /// it, or never if it came ahead.
  void take(PassedOn&& message);
  /// Notes that a request of `row` has ended, and starts the next one.
  void ended(Row row);

  std::size_t size() const noexcept;
  /// The microbatch and module of each request that waits for tensors.
  std::vector<std::pair<std::int32_t, ModuleId>> waiting_for_inputs() const;
  void clear() noexcept;

 private:
  struct Waiting {
    Forward forward;
    std::size_t missing = 0;
    bool failed = false;
  };
  struct RowState {
    std::map<std::uint32_t, Waiting> waiting;  // by place
    std::uint32_t next = 0;
    bool runs = false;
    bool starting = false;  // start_next() is in the midst of it
  };
  /// An output that comes ahead: the name of the request that makes it, and its index.
  using AheadName = std::pair<RequestName, std::uint32_t>;
  /// A consumer of such an output: a request of the same caller, and the index of its input.
  struct AheadFor {
    RequestId consumer;
    std::uint32_t index;
  };
  static Row row_of(PpRank source, const ForwardRequest& request);
  void await_ahead(const RequestName& name, const PromisedInput& input);
  void take_ahead(PassedOn&& message);
  void give_ahead(const AheadName& name, const AheadFor& to);
  static void put(Waiting& waiting, PassedOn&& message);
  void start_next(Row row);
  std::optional<Waiting> take_next(Row row);

  const Start start_;
  const std::function<void(PpRank, const PassOn&)> ask_;
  std::map<Row, RowState> rows_;
  std::map<RequestName, std::pair<Row, std::uint32_t>> missing_;  // whose inputs have not come
  std::map<RequestName, std::vector<PassedOn>> too_early_;        // before their requests
  std::map<AheadName, PassedOn> ahead_;  // came, and as many requests as `times` will take it
  std::map<AheadName, std::vector<AheadFor>> missing_ahead_;  // to which requests they go
};

}  // namespace smp::server
