// server/promises/output_fetch.cpp: its owner passes the output on to this rank.
#include "server/promises/output_fetch.h"

#include <utility>

#include "server/running/turn_taker.h"
#include "server/values/tensor_forms.h"

namespace smp::server {

OutputFetch::OutputFetch(ServerCore& core, PpRank owner, RequestId request)
    : core_(core), owner_(owner), request_(request), id_(core.step->requests.add(this)) {}

OutputFetch::~OutputFetch() {
  if (core_.step != nullptr) core_.step->requests.take(id_);
}

void OutputFetch::ask(std::uint32_t output) {
  core_.port.send(owner_, Message(PassOn{request_, output, core_.port.rank(), id_, 0}));
  ++core_.counters.fetched;
}

at::Tensor OutputFetch::wait(const fiber::WaitReason& reason) {
  await_answer(arrived_, reason);
  if (!message_ || message_->failed) return {};
  restore_forms(message_->forms, message_->tensors);
  return std::move(message_->tensors.at(0));
}

void OutputFetch::on_passed_on(PassedOn&& message) noexcept {
  message_ = std::move(message);
  arrived_.signal();
}

}  // namespace smp::server
