// server/calls/outgoing_call.h: a call that left this rank, from its forward request to the end of
// its record: how far it has come, and what may come next (docs/outgoing_calls.md).
#pragma once

#include <c10/util/SmallVector.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/check.h"
#include "fiber/scheduler.h"
#include "server/calls/call_line.h"
#include "server/graph/special_nodes.h"

namespace smp::server {

/// How far the forward of a call has come.
enum class ForwardState : std::uint8_t {
  kAsked,     ///< its caller waits for the answer
  kPromised,  ///< its caller has gone on with promises
  kAnswered,  ///< the answer is here; nothing was done with it
  kUsed,      ///< its results have become what it says
  kFailed,    ///< its owner has thrown
  kThrown,    ///< and so has this rank
  kAborted    ///< the step failed first, or nobody waits for it
};

/// How far its backward has come.
enum class BackwardState : std::uint8_t {
  kNone,      ///< it may be asked for, if there is a record
  kJoined,    ///< its request has a name, by which others may send gradients to it
  kAsked,     ///< its request has left
  kAnswered,  ///< the gradients, or what was thrown, are here, for a pass that is to come
  kNotBegun,  ///< the owner could not begin, and keeps the record
  kReleased   ///< a backward has used up the record, or nobody will
};

template <class State>
struct Move {
  State from, to;
};

/// All that happens to a forward.
inline constexpr Move<ForwardState> kForwardMoves[] = {
    {ForwardState::kAsked, ForwardState::kAnswered},
    {ForwardState::kAsked, ForwardState::kFailed},
    {ForwardState::kAsked, ForwardState::kAborted},
    {ForwardState::kPromised, ForwardState::kAnswered},
    {ForwardState::kPromised, ForwardState::kFailed},
    {ForwardState::kPromised, ForwardState::kAborted},
    {ForwardState::kAnswered, ForwardState::kUsed},
    {ForwardState::kFailed, ForwardState::kThrown},
};

/// All that happens to a backward.
inline constexpr Move<BackwardState> kBackwardMoves[] = {
    {BackwardState::kNone, BackwardState::kJoined},
    {BackwardState::kNone, BackwardState::kReleased},
    {BackwardState::kJoined, BackwardState::kAsked},
    {BackwardState::kJoined, BackwardState::kAnswered},
    {BackwardState::kJoined, BackwardState::kNone},
    {BackwardState::kAsked, BackwardState::kAnswered},
    {BackwardState::kAsked, BackwardState::kNotBegun},
    {BackwardState::kAnswered, BackwardState::kReleased},
    {BackwardState::kAnswered, BackwardState::kNone},
    {BackwardState::kNotBegun, BackwardState::kNone},
    {BackwardState::kReleased, BackwardState::kNone},
};

/// A state that changes as a table says, or not at all.
template <class State, const auto& kMoves>
class TableState {
 public:
  explicit TableState(State first) noexcept : state_(first) {}
  operator State() const noexcept { return state_; }  // NOLINT(google-explicit-constructor)
  /// @throws InternalError  the table has no such move
  void become(State next) {
    SMP_ASSERT(kFollowers[number(state_)] >> number(next) & 1U, "a call in state ", number(state_),
               " cannot get into state ", number(next));
    state_ = next;
  }

 private:
  static constexpr std::size_t number(State state) { return static_cast<std::size_t>(state); }
  /// By number of a state, a bit for each that may follow.
  static constexpr auto kFollowers = [] {
    std::array<std::uint8_t, 8> followers{};
    for (const auto& move : kMoves) {
      followers[number(move.from)] |= static_cast<std::uint8_t>(1U << number(move.to));
    }
    return followers;
  }();

  State state_;
};
using ForwardProgress = TableState<ForwardState, kForwardMoves>;
using BackwardProgress = TableState<BackwardState, kBackwardMoves>;

inline bool has_ended(ForwardState state) noexcept { return state > ForwardState::kPromised; }
/// The answer is to be used: nothing is known of its record.
inline bool is_open(ForwardState state) noexcept {
  return state == ForwardState::kPromised || state == ForwardState::kAnswered;
}
inline bool has_failed(ForwardState state) noexcept {
  return state == ForwardState::kFailed || state == ForwardState::kThrown;
}

/// What a call is, for requests and messages.
struct CallFacts {
  std::string who() const;

  PpRank owner;
  GlobalRank owner_name;
  ModuleId module;
  std::int32_t microbatch;
  std::int64_t step;
  const char* path;           ///< as long as the process lives
  Settings settings;          ///< of the caller when it had its answer
  std::uint32_t num_results;  ///< tensors that are promised
  RequestId request = {};     ///< of the forward
  RecordId record = {};       ///< none: nothing needs a gradient, as far as is known
};

/// What comes of a forward: one of both, or none if the step failed first.
struct CallAnswer {
  std::optional<ForwardResponse> response;
  std::optional<Failure> failure;
  c10::SmallVector<fiber::Event*, 1> waiters = {};
};

/// Kept by who waits for the answer or has its promises, and by the node of its results.
/// Threads: the rank's; answers come in polls.
class OutgoingCall final : public std::enable_shared_from_this<OutgoingCall> {
 public:
  /// @param first  kAsked or kPromised
  static std::shared_ptr<OutgoingCall> make(const std::shared_ptr<CallLine>& line, PpRank owner,
                                            const ForwardRequest& request, ForwardState first,
                                            std::size_t num_results);
  OutgoingCall(const std::shared_ptr<CallLine>& line, CallFacts&& facts, ForwardState first);
  ~OutgoingCall();
  OutgoingCall(const OutgoingCall&) = delete;
  OutgoingCall& operator=(const OutgoingCall&) = delete;

  const CallFacts& facts() const noexcept { return facts_; }
  /// nullptr: the session is over. Not to be kept while the fiber may be suspended.
  std::shared_ptr<CallLine> line() const noexcept { return line_.lock(); }
  ForwardState forward() const noexcept { return forward_; }
  BackwardState backward() const noexcept { return backward_; }

  // Forward.

  /// Names the request, before it is sent. What comes of it gets into `answer`, which is there
  /// until then, or until abandon().
  RequestId ask(CallAnswer& answer);
  /// Suspends until it has ended.
  void wait();
  /// The caller throws what the owner has thrown. @return whether it does so for the first time
  bool note_thrown();
  /// The caller does what the answer says. @param changed  settings that it has from now on
  void use(RecordId record, const Settings* changed = nullptr);
  /// Nobody will wait for it.
  void abandon() noexcept;

  // Backward.

  /// It was asked for before a pass came to it, which gets what has come meanwhile.
  bool begun_early() const noexcept;
  /// A pass has come to it: `done` gets its gradients. Without one it is begun early, and
  /// `on_answer`, which may be nullptr, is signalled when the owner has answered. It answers at
  /// once if nothing there needs a gradient.
  /// @throws UsageError, UnsupportedError  it cannot be run, or not again
  void join(const BackwardOptions& options, Completion done, fiber::Event* on_answer = nullptr);
  RequestId backward_request() const noexcept { return pass_.request; }
  /// After join(). Completes what only the call knows.
  void ask_backward(BackwardRequest&& request);
  /// After join(): it is not run after all, here or anywhere.
  void leave() noexcept;
  /// No gradient came to it, so its owner keeps the record.
  void keep_record() noexcept;
  /// Nobody will ask for it. While its request is answered the line keeps it: the owner may have
  /// kept the record, which is to be released then.
  void drop() noexcept;

  /// Of the gradients that came last: their forms, which went on to others, and whether there are
  /// more, left where BackwardRequest::leaves_rest_to said.
  struct Notes {
    Note forms, routed;
    bool left_rest = false;
  };
  Notes& notes() noexcept { return notes_; }

  /// The graph of the gradients that came last (create_graph), which a backward can be asked for
  /// like that of the call.
  struct GradientGraph {
    std::shared_ptr<OutgoingCall> call;  ///< nullptr: they have none
    Note requires_grad, inner;           ///< as in BackwardResponse
  };
  GradientGraph take_gradient_graph() noexcept { return std::exchange(gradient_graph_, {}); }

 private:
  /// Takes what comes of one of its requests.
  struct Target final : ResponseTarget {
    explicit Target(OutgoingCall& of) noexcept : call(of) {}
    bool is_backward() const noexcept { return this == &call.backward_target_; }
    void on_forward(ForwardResponse&& response) noexcept override;
    void on_backward(BackwardResponse&& response) noexcept override;
    void on_error(Failure&& failure) noexcept override;
    void on_abort() noexcept override;
    OutgoingCall& call;
  };
  /// The backward that runs.
  struct Pass {
    RequestId request = {};
    Completion done = {};
    fiber::Event* on_answer = nullptr;
    bool keeps_record = false;
  };

  StepState* step() const noexcept;
  StepState& require_may_join() const;
  void end_forward(ForwardState state) noexcept;
  void end_backward(BackwardState state, variable_list&& gradients, std::exception_ptr error);
  void deliver();
  void end_dropped() noexcept;
  void keep_gradient_graph(BackwardResponse& response);
  void drop_gradient_graph() noexcept;

  const std::weak_ptr<CallLine> line_;  // tensors and graphs may outlive the session
  CallFacts facts_;
  ForwardProgress forward_;
  BackwardProgress backward_{BackwardState::kNone};
  CallAnswer* answer_ = nullptr;
  Pass pass_;
  variable_list gradients_;  // kAnswered
  std::exception_ptr error_;
  Notes notes_;
  GradientGraph gradient_graph_;  // until a pass takes it
  bool dropped_ = false;          // while it was asked for
  Target forward_target_{*this};
  Target backward_target_{*this};
};

}  // namespace smp::server
