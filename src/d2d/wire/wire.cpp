// d2d/wire/wire.cpp: see the header.
#include "d2d/wire/wire.h"

#include <sched.h>
#include <time.h>

#include <utility>

#include "alive/writing.h"
#include "base/check.h"

namespace smp::d2d {
namespace {

/// The handler of a wire that nobody listens to; what arrives there is lost.
class Nobody final : public WireHandler {
  void on_control(GlobalRank, ByteBuffer&&) override {}
  void on_sent(Token) override {}
  void on_received(Token) override {}
};
Nobody nobody;

}  // namespace

std::optional<MemoryKind> memory_kind(c10::DeviceType device) noexcept {
  if (device == c10::DeviceType::CPU) return MemoryKind::kHost;
  if (device == c10::DeviceType::CUDA) return MemoryKind::kCuda;
  if (device == c10::DeviceType::PrivateUse1 && c10::is_privateuse1_backend_registered() &&
      c10::get_privateuse1_backend() == "neuron") {
    return MemoryKind::kNeuron;
  }
  return std::nullopt;
}

Wire::Wire(GlobalRank rank, Members members)
    : rank_(rank), members_(std::move(members)), handler_(&nobody) {
  SMP_REQUIRE(members_.contain(rank), "rank ", rank, ": connecting the ranks ", members_,
              ": it is not one of them; only the ranks to be connected may do that.");
}

void Wire::set_handler(WireHandler* handler) noexcept {
  handler_ = handler == nullptr ? &nobody : handler;
}

bool Wire::close(base::Nanoseconds deadline) {
  const base::EndOfPatience end(deadline);
  for (int idle = 0; !leave(); ++idle) {
    if (poll()) idle = 0;
    if (end.has_come()) return false;
    wait_politely(idle);
  }
  return true;
}

void wait_politely(int idle_rounds) noexcept {
  constexpr int kRoundsBeforeSleep = 100;
  if (idle_rounds < kRoundsBeforeSleep) {
    sched_yield();
    return;
  }
  const timespec pause{0, 100'000};
  nanosleep(&pause, nullptr);
}

}  // namespace smp::d2d
