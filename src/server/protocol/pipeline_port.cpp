// server/protocol/pipeline_port.cpp: stages to ranks and back.
#include "server/protocol/pipeline_port.h"

#include <algorithm>
#include <exception>
#include <utility>
#include <variant>

#include "base/check.h"
#include "server/protocol/message_decoder.h"
#include "server/protocol/message_encoder.h"

namespace smp::server {

PipelinePort::PipelinePort(d2d::Channel& channel, std::vector<GlobalRank> stages)
    : channel_(channel), stages_(std::move(stages)), rank_(stage_of(channel.rank())) {}

PpRank PipelinePort::stage_of(GlobalRank rank) const {
  const auto found = std::find(stages_.begin(), stages_.end(), rank);
  SMP_ASSERT(found != stages_.end(), "rank ", rank, " is no stage of this pipeline");
  return PpRank(static_cast<int>(found - stages_.begin()));
}

void PipelinePort::require_open() const {
  SMP_REQUIRE_AS(PeerLostError, channel_.end().empty(), "rank ", name(), ": step ", step_ + 1,
                 " cannot start, because this rank has lost the others. ", channel_.end());
}

bool PipelinePort::has_failed() const noexcept { return !channel_.end().empty(); }

void PipelinePort::send_to_others(const Message& message) {
  std::exception_ptr first;  // one that is gone keeps nobody else from hearing it
  for (int stage = 0; stage < size(); ++stage) {
    if (PpRank(stage) == rank_) continue;
    try {
      send(PpRank(stage), message);
    } catch (const PeerLostError&) {
      if (!first) first = std::current_exception();
    }
  }
  if (first) std::rethrow_exception(first);
}

void PipelinePort::send_to_others(const StepEnded& message,
                                  const std::shared_ptr<d2d::Departure>& departure) {
  for (int stage = 0; stage < size(); ++stage) {
    if (PpRank(stage) == rank_) continue;
    send_message(channel_, stages_[static_cast<std::size_t>(stage)], step_, message, departure);
  }
}

void PipelinePort::send_message_of_step(GlobalRank to, const ForwardRequest& message) {
  send_message(channel_, to, step_, message);
}
void PipelinePort::send_message_of_step(GlobalRank to, const ForwardResponse& message) {
  send_message(channel_, to, step_, message);
}
void PipelinePort::send_message_of_step(GlobalRank to, const BackwardRequest& message) {
  send_message(channel_, to, step_, message);
}
void PipelinePort::send_message_of_step(GlobalRank to, const BackwardResponse& message) {
  send_message(channel_, to, step_, message);
}
void PipelinePort::send_message_of_step(GlobalRank to, const Message& message) {
  const bool data = std::holds_alternative<PassedOn>(message) ||
                    std::holds_alternative<StepEnded>(message) ||
                    std::holds_alternative<ErrorResponse>(message);
  if (!data) ++control_messages_;
  send_message(channel_, to, step_, message);
}

void PipelinePort::open(Receiver receiver, ErrorHandler on_error) {
  receiver_ = std::move(receiver);
  on_error_ = std::move(on_error);
  channel_.set_receiver(d2d::Port::kServer, [this](GlobalRank source, d2d::ArrivedFrame&& frame) {
    receive(source, std::move(frame));
  });
  channel_.set_failure_handler([this](const std::string& what) {
    on_error_(channel_.end().empty() ? std::make_exception_ptr(UsageError(what))
                                     : std::make_exception_ptr(PeerLostError(what)));
  });
}

void PipelinePort::close() {
  channel_.set_receiver(d2d::Port::kServer, [](GlobalRank, d2d::ArrivedFrame&&) {});
  channel_.set_failure_handler(nullptr);
}

void PipelinePort::receive(GlobalRank source, d2d::ArrivedFrame&& frame) {
  receiving_ = true;
  try {
    auto received = decode_message(std::move(frame));
    receiver_(stage_of(source), received.step, std::move(received.message));
  } catch (...) {
    on_error_(std::current_exception());
  }
  receiving_ = false;
}

}  // namespace smp::server
