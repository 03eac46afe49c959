// The played libnrt: memory of cores, and copies that block.
#include <cstdlib>
#include <cstring>
#include <utility>

#include "d2d/wires/neuron/played/process.h"

namespace smp::played {

std::byte* bytes_of(nrt_tensor& tensor, std::size_t offset) {
  if (tensor.storage->all_memory) {
    return reinterpret_cast<std::byte*>(tensor.offset + offset);  // NOLINT
  }
  return tensor.storage->bytes.data() + tensor.offset + offset;
}

nrt_tensor& checked(nrt_tensor* tensor, std::size_t offset, std::size_t size) {
  if (process().tensors.count(tensor) == 0) die("a tensor that is not there");
  if (size > tensor->size || offset > tensor->size - size) die("bytes outside of a tensor");
  return *tensor;
}

}  // namespace smp::played

using smp::played::kInvalid;
using smp::played::kResource;
using smp::played::kSuccess;

namespace {

nrt_tensor* keep(nrt_tensor tensor) {
  auto& own = smp::played::process();
  auto* const kept = new nrt_tensor(std::move(tensor));
  own.tensors.insert(kept);
  ++own.counters.tensors;
  return kept;
}

}  // namespace

PLAYED_API int nrt_tensor_allocate(int placement, int vnc, std::size_t size, const char*,
                                   nrt_tensor** tensor) {
  PLAYED_CALL();
  if (placement != 0 || size == 0 || tensor == nullptr) return kInvalid;
  if (vnc < 0 || vnc >= static_cast<int>(own.cores.size())) return kInvalid;  // relative
  auto& used = own.used[vnc];
  if (size > own.knobs.hbm_bytes - used) return kResource;
  used += size;
  nrt_tensor made;
  made.storage = std::make_shared<smp::played::Storage>();
  made.storage->bytes.assign(size, std::byte{0xee});
  made.size = size;
  made.vnc = vnc;
  *tensor = keep(std::move(made));
  return kSuccess;
}

PLAYED_API int nrt_tensor_allocate_slice(const nrt_tensor* source, std::size_t offset,
                                         std::size_t size, const char*, nrt_tensor** slice) {
  PLAYED_CALL();
  nrt_tensor made = smp::played::checked(const_cast<nrt_tensor*>(source), offset, size);
  made.offset += offset;
  made.size = size;
  made.pending = 0;
  *slice = keep(std::move(made));
  return kSuccess;
}

PLAYED_API void nrt_tensor_free(nrt_tensor** tensor) {
  auto& own = smp::played::process();
  const std::lock_guard lock(own.mutex);
  if (tensor == nullptr || own.life != smp::played::Life::kRunning) return;
  if (own.tensors.erase(*tensor) == 0) smp::played::die("a tensor that is freed twice");
  if ((*tensor)->pending > 0) smp::played::die("a tensor is freed that a request still uses");
  auto& storage = (*tensor)->storage;
  if (storage.use_count() == 1 && storage->attached != nullptr) {
    smp::played::die("memory is freed that a network has registered");
  }
  if (storage.use_count() == 1 && !storage->all_memory) {
    own.used[(*tensor)->vnc] -= storage->bytes.size();
  }
  delete *tensor;
  *tensor = nullptr;
  --own.counters.tensors;
}

PLAYED_API std::size_t nrt_tensor_get_size(const nrt_tensor* tensor) { return tensor->size; }

PLAYED_API void* nrt_tensor_get_va(const nrt_tensor* tensor) {
  if (!smp::played::process().knobs.gives_addresses) return nullptr;
  return smp::played::bytes_of(*const_cast<nrt_tensor*>(tensor), 0);
}

PLAYED_API int nrt_tensor_read(const nrt_tensor* tensor, void* to, std::size_t offset,
                               std::size_t size) {
  PLAYED_CALL();
  auto& from = smp::played::checked(const_cast<nrt_tensor*>(tensor), offset, size);
  std::memcpy(to, smp::played::bytes_of(from, offset), size);
  return kSuccess;
}

PLAYED_API int nrt_tensor_write(nrt_tensor* tensor, const void* from, std::size_t offset,
                                std::size_t size) {
  PLAYED_CALL();
  auto& to = smp::played::checked(tensor, offset, size);
  std::memcpy(smp::played::bytes_of(to, offset), from, size);
  return kSuccess;
}

PLAYED_API int nrt_tensor_copy(const nrt_tensor* source, std::size_t source_offset,
                               nrt_tensor* destination, std::size_t offset, std::size_t size) {
  PLAYED_CALL();
  auto& from = smp::played::checked(const_cast<nrt_tensor*>(source), source_offset, size);
  auto& to = smp::played::checked(destination, offset, size);
  if (from.vnc != to.vnc) return kInvalid;  // never to another core
  std::memmove(smp::played::bytes_of(to, offset), smp::played::bytes_of(from, source_offset), size);
  return kSuccess;
}
