// d2d/wires/neuron/neuron_pool.cpp: see the header.
#include "d2d/wires/neuron/neuron_pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <iterator>

#include "base/check.h"
#include "d2d/wires/neuron/neuron_status.h"
#include "smp/error.h"

namespace smp::d2d {
namespace {

std::size_t aligned(std::size_t bytes) {
  return (bytes + NeuronPool::kAlignment - 1) / NeuronPool::kAlignment * NeuronPool::kAlignment;
}

}  // namespace

NeuronPool::NeuronPool(NeuronRuntime& runtime, RelativeCore core, std::size_t bytes)
    : runtime_(runtime), core_(core), bytes_(aligned(bytes)) {
  runtime_.require_usable("nrt_tensor_allocate");
  const auto absolute = runtime_.claim().absolute(core);  // in range
  void* const addresses =
      ::mmap(nullptr, bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  SMP_REQUIRE_AS(ResourceError, addresses != MAP_FAILED, "rank ", runtime.rank(), ", Neuron core ",
                 absolute, ": no ", bytes_,
                 " addresses for its memory; raise the limit of address space (ulimit -v).");
  shown_ = static_cast<std::byte*>(addresses);
  const int status = runtime_.library().tensor_allocate(NeuronLibrary::kOnDevice, core.value(),
                                                        bytes_, "smp", &tensor_);
  if (status == neuron_status::kSuccess) {
    add_free(0, bytes_);
    return;
  }
  ::munmap(shown_, bytes_);
  runtime_.fail(status, base::concat("setting ", bytes_, " bytes of its memory aside"),
                "nrt_tensor_allocate", core);
}

NeuronPool::~NeuronPool() {
  about_to_free(tensor_);
  // A closed runtime has freed it.
  if (!runtime_.is_closed()) runtime_.library().tensor_free(&tensor_);
  ::munmap(shown_, bytes_);
}

std::byte* NeuronPool::allocate(std::size_t bytes) {
  if (bytes == 0) return nullptr;
  const std::lock_guard lock(mutex_);
  const auto wanted = aligned(bytes);
  const auto found = bytes <= bytes_ ? by_size_.lower_bound({wanted, 0}) : by_size_.end();
  SMP_REQUIRE_AS(ResourceError, found != by_size_.end(), "rank ", runtime_.rank(), ", Neuron core ",
                 runtime_.claim().absolute(core_), ": no ", bytes,
                 " bytes of its memory are free in one piece: ", used_, " of ", bytes_,
                 " are in use, and the longest free piece has ",
                 by_size_.empty() ? 0 : by_size_.rbegin()->first,
                 "; a smaller model, microbatch or window, or more stages, takes less.");
  const auto [size, offset] = *found;
  remove_free(free_.find(offset));
  if (size > wanted) add_free(offset + wanted, size - wanted);
  taken_.emplace(offset, wanted);
  used_ += wanted;
  most_used_ = std::max(most_used_, used_);
  return shown_ + offset;
}

void NeuronPool::free(std::byte* block) noexcept {
  if (block == nullptr) return;
  const std::lock_guard lock(mutex_);
  const auto found = taken_.find(static_cast<std::size_t>(block - shown_));
  if (found == taken_.end()) return;
  auto offset = found->first, size = found->second;
  taken_.erase(found);
  used_ -= size;
  const auto next = free_.lower_bound(offset);
  if (next != free_.begin()) {
    const auto previous = std::prev(next);
    if (previous->first + previous->second == offset) {
      offset = previous->first;
      size += previous->second;
      remove_free(previous);
    }
  }
  if (next != free_.end() && next->first == offset + size) {
    size += next->second;
    remove_free(next);
  }
  add_free(offset, size);
}

std::optional<NeuronPlace> NeuronPool::find(const std::byte* address) const {
  if (address < shown_ || address >= shown_ + bytes_) return std::nullopt;
  const auto offset = static_cast<std::size_t>(address - shown_);
  const std::lock_guard lock(mutex_);
  auto block = taken_.upper_bound(offset);
  if (block == taken_.begin()) return std::nullopt;
  --block;
  const auto end = block->first + block->second;
  if (offset >= end) return std::nullopt;
  return NeuronPlace{tensor_, offset, end - offset, core_};
}

std::size_t NeuronPool::used() const {
  const std::lock_guard lock(mutex_);
  return used_;
}

std::size_t NeuronPool::most_used() const {
  const std::lock_guard lock(mutex_);
  return most_used_;
}

void NeuronPool::forget_most_used() {
  const std::lock_guard lock(mutex_);
  most_used_ = used_;
}

void NeuronPool::add_free(std::size_t offset, std::size_t size) {
  free_.emplace(offset, size);
  by_size_.emplace(size, offset);
}

void NeuronPool::remove_free(std::map<std::size_t, std::size_t>::iterator block) {
  by_size_.erase({block->second, block->first});
  free_.erase(block);
}

}  // namespace smp::d2d
