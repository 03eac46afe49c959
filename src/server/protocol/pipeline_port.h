// server/protocol/pipeline_port.h: the way to the servers of the same pipeline: by stage, whatever
// ranks of the job these are.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <vector>

#include "d2d/channel/channel.h"
#include "server/protocol/message.h"
#include "smp/rank.h"

namespace smp::server {

/// Sends messages to the other stages, and receives theirs. Threads: the rank's; nothing here
/// suspends.
class PipelinePort {
 public:
  /// @param stages  the job's rank of every stage, this one among them
  PipelinePort(d2d::Channel& channel, std::vector<GlobalRank> stages);

  PpRank rank() const noexcept { return rank_; }
  /// The name of `stage` in messages to people: the job's rank that runs it.
  GlobalRank name(PpRank stage) const { return stages_.at(stage.index()); }
  GlobalRank name() const { return name(rank_); }
  int size() const noexcept { return static_cast<int>(stages_.size()); }
  bool is_first() const noexcept { return rank_.value() == 0; }

  /// Checks the way to the other stages. @throws PeerLostError  it is broken; with the reason.
  void require_open() const;
  /// True if the way to the others is broken, for good.
  bool has_failed() const noexcept;
  /// Begins the next step, to which messages belong from now on.
  void begin_step() noexcept { ++step_; }
  /// The number of steps that this rank has begun.
  std::int64_t step() const noexcept { return step_; }

  template <class Kind>
  void send(PpRank to, const Kind& message) {
    send_message_of_step(stages_.at(to.index()), message);
  }
  /// Sends `message` to every other stage, in order of stages.
  void send_to_others(const Message& message);
  /// Sends `message` to every other stage; `departure` counts the tensors that have not left yet.
  void send_to_others(const StepEnded& message, const std::shared_ptr<d2d::Departure>& departure);

  /// Called in a poll for every message; must not suspend. What it throws, and frames that make no
  /// sense, go to `on_error`.
  using Receiver = std::function<void(PpRank source, std::int64_t step, Message&& message)>;
  using ErrorHandler = std::function<void(std::exception_ptr error)>;
  void open(Receiver receiver, ErrorHandler on_error);
  void close();
  /// The number of messages sent so far, except for requests and answers, tensors that are passed
  /// on, and outputs of steps.
  std::uint64_t control_messages() const noexcept { return control_messages_; }
  /// True while a message is being received.
  bool receiving() const noexcept { return receiving_; }

 private:
  void send_message_of_step(GlobalRank to, const ForwardRequest& message);
  void send_message_of_step(GlobalRank to, const ForwardResponse& message);
  void send_message_of_step(GlobalRank to, const BackwardRequest& message);
  void send_message_of_step(GlobalRank to, const BackwardResponse& message);
  void send_message_of_step(GlobalRank to, const Message& message);
  void receive(GlobalRank source, d2d::ArrivedFrame&& frame);
  PpRank stage_of(GlobalRank rank) const;

  d2d::Channel& channel_;
  std::vector<GlobalRank> stages_;
  PpRank rank_;
  std::int64_t step_ = 0;
  bool receiving_ = false;
  std::uint64_t control_messages_ = 0;
  Receiver receiver_;
  ErrorHandler on_error_;
};

}  // namespace smp::server
