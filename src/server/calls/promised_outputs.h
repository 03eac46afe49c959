// server/calls/promised_outputs.h: the results of a call that has returned before its answer came
// (docs/design.md, Promised outputs).
#pragma once

#include <c10/util/SmallVector.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/calls/outgoing_call.h"
#include "server/calls/promised_answer.h"
#include "server/calls/remote_call.h"
#include "server/promises/expected_results.h"
#include "server/promises/promised_tensor.h"
#include "server/replay/recorded_flow.h"
#include "server/running/open_call.h"

namespace smp::server {

class PromisedOutputs;

/// Outputs of a call that its owner needs for a later request to itself. It asks for them when that
/// has come, which a large tensor of it may delay, so they are not released before its answer. The
/// caller asks owners of other requests (CallRouter::send).
class OutputUse {
 public:
  explicit OutputUse(std::shared_ptr<PromisedOutputs> outputs);
  ~OutputUse();
  OutputUse(OutputUse&&) noexcept = default;
  OutputUse(const OutputUse&) = delete;
  OutputUse& operator=(const OutputUse&) = delete;
  OutputUse& operator=(OutputUse&& other) noexcept {
    outputs_.swap(other.outputs_);
    return *this;
  }

 private:
  std::shared_ptr<PromisedOutputs> outputs_;
};
using OutputUses = c10::SmallVector<OutputUse, 2>;

/// Where outputs of a call were passed on to, for the next step like this one (static_mode).
class OutputWays {
 public:
  /// @param ahead  as often as requests have not named them yet
  /// @param recorded  what this call did in earlier steps; nullptr: nobody writes it down
  OutputWays(std::vector<SendAhead> ahead, RecordedFlow::Call* recorded)
      : ahead_(std::move(ahead)), recorded_(recorded) {}
  /// @return whether it goes there unasked
  bool add(std::uint32_t output, PpRank to);
  void end();

 private:
  std::vector<SendAhead> ahead_, went_;
  RecordedFlow::Call* recorded_;  // as long as the router
};

/// Kept by the promised tensors and the execution that made the call. Threads: the rank's.
class PromisedOutputs final : public PromisedValues, public OpenCall {
 public:
  /// Names the request.
  /// @param call  kPromised
  /// @param own  the arguments as the caller has them
  /// @param uses  of outputs of earlier calls, for `request`
  PromisedOutputs(std::shared_ptr<OutgoingCall> call, ForwardRequest& request,
                  ExpectedResult& expected, at::ArrayRef<at::Tensor> own, OutputUses&& uses,
                  RecordedFlow::Call* recorded);
  ~PromisedOutputs() override { abandon(); }
  PromisedOutputs(const PromisedOutputs&) = delete;
  PromisedOutputs& operator=(const PromisedOutputs&) = delete;

  /// What the caller gets.
  static Packet promises(const std::shared_ptr<PromisedOutputs>& outputs);
  /// Whether they can be passed on by name; else their values are here, or must be fetched.
  /// Somebody would pass them on: the owner of calls like this one keeps them from now on.
  bool passes_on() noexcept;
  /// Output `index` as an input of a request to `consumer`; input 0, which the caller may change.
  PromisedInput pass_on(std::size_t index, PpRank consumer);
  /// One more needs them at the owner, until let_go().
  void hold() noexcept { ++num_live_; }
  void let_go() noexcept;

  // PromisedValues
  Value value(std::size_t index) override;
  void forget(std::size_t index) noexcept override;

  // OpenCall
  void finish() override;
  void fetch_all() override;
  void abandon() noexcept override;
  bool has_answered() const noexcept override;
  const torch::autograd::Node* history() const noexcept override { return node_.get(); }

 private:
  enum class Keeping : std::uint8_t { kNot, kKept, kWithheld };  // at the owner
  enum class Need : std::uint8_t { kNone, kLater, kAtOnce };     // of the caller
  void require_that_it_can_wait() const;
  CallLine& line_in_step() const;
  bool may_be_withheld() const noexcept;
  void await_end();
  [[noreturn]] void throw_failure();
  void settle();
  void use_answer();
  void take_settings(const Settings& changed);

  const std::shared_ptr<OutgoingCall> call_;
  CallAnswer answer_;
  ExpectedResult& expected_;  // as long as the router
  OutputWays ways_;
  HeldArguments arguments_;       // until the answer was used
  OutputUses uses_;               // likewise
  NodePointer<RemoteCall> node_;  // likewise
  std::vector<PromisedOutput> outputs_;
  std::size_t num_live_;        // outputs, and uses
  const std::uint64_t number_;  // WorkCount::calls() of its caller
  const bool from_body_;
  const Keeping keeping_;  // as far as was asked for
  Need need_ = Need::kNone;
  Outcome outcome_ = Outcome::kValues;
};

}  // namespace smp::server
