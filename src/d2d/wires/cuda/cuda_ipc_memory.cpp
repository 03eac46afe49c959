// d2d/wires/cuda/cuda_ipc_memory.cpp: see the header.
#include "d2d/wires/cuda/cuda_ipc_memory.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/keep_until_exit.h"
#include "smp/error.h"

namespace smp::d2d {

CudaIpcMemory::CudaIpcMemory(std::unique_ptr<CudaDevice> device, const Members& members,
                             GlobalRank own, const std::vector<std::string>& gpus,
                             const CudaIpcOptions& options)
    : device_(std::move(device)),
      members_(members),
      own_(static_cast<std::size_t>(members.position(own))),
      options_(options),
      peers_(static_cast<std::size_t>(members.size())) {
  SMP_ASSERT(gpus.size() == peers_.size(), gpus.size(), " GPUs");
  for (std::size_t i = 0; i < gpus.size(); ++i) {
    peers_[i].shares_events = options_.shared_events && gpus[i] != gpus[own_];
  }
  options_.shared_events = std::any_of(peers_.begin(), peers_.end(),
                                       [](const Peer& peer) { return peer.shares_events; });
  try {
    set_aside();
  } catch (...) {
    free_all();
    throw;
  }
}

void CudaIpcMemory::set_aside() {
  for (std::uint32_t i = 0; i < options_.events; ++i) {
    events_.push_back(device_->make_event(options_.shared_events));
  }
  copies_ = device_->make_stream();
  arena_ = device_->allocate(peers_.size() * options_.pages * options_.page_bytes);
}

CudaDevice::Event CudaIpcMemory::make_own_event() {
  return own_events_.emplace_back(device_->make_event(/*shared=*/false));
}

CudaIpcMemory::~CudaIpcMemory() {
  const bool is_connected = std::any_of(peers_.begin(), peers_.end(),
                                        [](const Peer& peer) { return peer.arena != nullptr; });
  if (is_connected) {
    base::keep_until_exit(std::move(device_));
  } else {
    free_all();
  }
}

void CudaIpcMemory::free_all() noexcept {
  for (const auto& from : peers_) {
    for (auto* const event : from.events) device_->free_event(event);
  }
  for (auto* const event : own_events_) device_->free_event(event);
  for (auto* const event : events_) device_->free_event(event);
  if (copies_ != nullptr) device_->free_stream(copies_);
  if (arena_ != nullptr) device_->free(arena_);
}

std::string CudaIpcMemory::offer() const {
  std::vector<CudaDevice::Handle> handles{device_->export_memory(arena_)};
  for (auto* const event : events_) {
    if (options_.shared_events) handles.push_back(device_->export_event(event));
  }
  return {reinterpret_cast<const char*>(handles.data()), handles.size() * sizeof handles[0]};
}

void CudaIpcMemory::connect(const std::vector<std::string>& offers) {
  SMP_ASSERT(offers.size() == peers_.size(), offers.size(), " offers");
  for (std::size_t i = 0; i < peers_.size(); ++i) {
    if (i == own_) continue;
    auto& to = peers_[i];
    const std::size_t handles = 1 + (to.shares_events ? options_.events : 0);
    SMP_REQUIRE_AS(PeerLostError, offers[i].size() >= handles * sizeof(CudaDevice::Handle), "rank ",
                   members_[static_cast<int>(i)], " offers ", offers[i].size(),
                   " bytes of CUDA handles");
    auto take = [at = offers[i].data()]() mutable {
      CudaDevice::Handle handle;
      std::memcpy(handle.data(), at, sizeof handle);
      at += sizeof handle;
      return handle;
    };
    to.arena = device_->open_memory(take());
    for (std::size_t k = 1; k < handles; ++k) to.events.push_back(device_->open_event(take()));
  }
}

void CudaIpcMemory::disconnect() noexcept {
  for (auto& to : peers_) {
    if (to.arena != nullptr) device_->close_memory(std::exchange(to.arena, nullptr));
  }
}

}  // namespace smp::d2d
