// server/recompute/offload.cpp: parcels in the order in which their backwards are expected.
#include "server/recompute/offload.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

#include <utility>

#include "base/check.h"
#include "base/log.h"

namespace smp::server {
namespace {

struct Current {
  std::mutex mutex;
  std::shared_ptr<Offload> offload;
};
Current& of_process() {
  static auto* const current = new Current;  // tensors of static duration may still ask
  return *current;
}

}  // namespace

std::shared_ptr<Offload> Offload::current() {
  const std::lock_guard lock(of_process().mutex);
  return of_process().offload;
}

void Offload::set_current(std::shared_ptr<Offload> offload) {
  const std::lock_guard lock(of_process().mutex);
  of_process().offload = std::move(offload);
}

Offload::Offload(const Options& options, std::unique_ptr<CopyStreams> streams)
    : options_(options), streams_(std::move(streams)), pool_(*streams_, options.pool_bytes) {}

Offload::Counters Offload::counters() const {
  const std::lock_guard lock(mutex_);
  return counters_;
}

std::int64_t Offload::pool_bytes() const {
  const std::lock_guard lock(mutex_);
  return pool_.bytes();
}

Offload::Place Offload::next_place(int rank, int microbatch) {
  const std::lock_guard lock(mutex_);
  return {rank, microbatch, -++calls_};
}

std::unique_ptr<Offload::Parcel> Offload::Parcel::send(const std::shared_ptr<Offload>& offload,
                                                       const Place& place,
                                                       const std::vector<at::Tensor>& tensors) {
  std::unique_ptr<Parcel> parcel(new Parcel(offload, place));
  return offload->send(*parcel, tensors) ? std::move(parcel) : nullptr;
}

bool Offload::send(Parcel& parcel, const std::vector<at::Tensor>& tensors) {
  const at::NoGradGuard no_grad;
  const std::lock_guard lock(mutex_);
  for (const auto& tensor : tensors) {
    auto block = pool_.take(tensor.numel());
    if (!block.defined()) return note_full(), false;
    parcel.pieces_.push_back({std::move(block), {}, tensor.numel(), nullptr});
  }
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    auto& piece = parcel.pieces_[i];
    piece.last_copy = streams_->to_host(tensors[i], piece.host.narrow(0, 0, piece.bytes));
    leaving_.emplace_back(tensors[i], piece.last_copy);
  }
  away_.emplace(parcel.place_, &parcel);
  ++counters_.sent;
  let_go();
  return true;
}

void Offload::note_full() {
  if (counters_.stayed++ > 0) return;
  base::log(base::LogLevel::kWarning,
            "offload_activations: there is no more host memory for it: ", pool_.bytes(),
            " of at most ", options_.pool_bytes,
            " bytes are taken, so some of what checkpointed modules keep stays on the device");
}

void Offload::let_go() {
  std::erase_if(leaving_, [this](const auto& leaving) { return streams_->done(leaving.second); });
}

/// Starts to copy the tensors to the device. @throws c10::OutOfMemoryError  it has no room; then
/// nothing has changed.
void Offload::fetch(Parcel& parcel) {
  std::vector<at::Tensor> memory;
  for (const auto& piece : parcel.pieces_) {
    memory.push_back(streams_->device_memory(piece.bytes));
  }
  for (std::size_t i = 0; i < memory.size(); ++i) {
    auto& piece = parcel.pieces_[i];
    piece.back = std::move(memory[i]);
    piece.last_copy =
        streams_->to_device(piece.host.narrow(0, 0, piece.bytes), piece.back, piece.last_copy);
  }
  parcel.fetched_ = true;
}

/// Fetches tensors that are needed. Where the device has no room, what was fetched ahead goes: the
/// last ones first, as their copies on the host are there still.
void Offload::fetch_now(Parcel& parcel) {
  while (true) {
    try {
      return fetch(parcel);
    } catch (const c10::OutOfMemoryError&) {
      if (!free_leaving() && !give_back()) throw;
    }
  }
}

/// Frees what has not left yet: whatever comes after in the current stream waits for the copies.
/// @return false: there is none
bool Offload::free_leaving() {
  if (leaving_.empty()) return false;
  for (const auto& [tensor, copied] : leaving_) streams_->wait(copied);
  leaving_.clear();
  return true;
}

/// Frees the device memory of the last parcel that has been fetched ahead. @return false: of none
bool Offload::give_back() {
  for (auto last = away_.rbegin(); last != away_.rend(); ++last) {
    auto& parcel = *last->second;
    if (!parcel.fetched_) continue;
    for (auto& piece : parcel.pieces_) piece.back.reset();
    parcel.fetched_ = false;
    ++counters_.given_back;
    return true;
  }
  return false;
}

void Offload::fetch_ahead(const Place& of) {
  int left = options_.horizon;
  for (auto next = away_.upper_bound(of); next != away_.end() && left > 0; ++next, --left) {
    auto& parcel = *next->second;
    if (next->first.rank != of.rank) return;
    if (parcel.fetched_) continue;
    try {
      fetch(parcel);
      ++counters_.ahead;
    } catch (const c10::OutOfMemoryError&) {
      ++counters_.put_off;
      return;
    }
  }
}

std::vector<at::Tensor> Offload::take(Parcel& parcel) {
  const at::NoGradGuard no_grad;
  const std::lock_guard lock(mutex_);
  away_.erase(parcel.place_);
  if (!parcel.fetched_) {
    fetch_now(parcel);
    ++counters_.late;
  }
  std::vector<at::Tensor> tensors;
  for (auto& piece : parcel.pieces_) {
    streams_->wait(piece.last_copy);
    tensors.push_back(std::move(piece.back));
  }
  fetch_ahead(parcel.place_);
  let_go();
  return tensors;
}

void Offload::drop(Parcel& parcel) noexcept {
  const std::lock_guard lock(mutex_);
  const auto own = away_.find(parcel.place_);
  if (own != away_.end() && own->second == &parcel) away_.erase(own);
  for (auto& piece : parcel.pieces_) {
    pool_.give(std::move(piece.host), std::move(piece.last_copy));
  }
  parcel.pieces_.clear();
}

}  // namespace smp::server
