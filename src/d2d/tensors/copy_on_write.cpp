// d2d/tensors/copy_on_write.cpp: LibTorch's copy-on-write, which takes for granted that a storage
// is written to by one thread, and still is what it was made.
#include "d2d/tensors/copy_on_write.h"

#include <c10/core/impl/COW.h>
#include <c10/util/ParallelGuard.h>

#include <mutex>

#include "base/torch_features.h"

namespace smp::d2d {
#if SMP_STORAGES_CAN_BE_WATCHED
namespace {

/// Gives `storage` memory of its own. A thread that comes second, or one whose storage was resized
/// before, finds nothing to do; so this may happen inside of a parallel loop, where LibTorch's own
/// copy-on-write may not.
void copy_if_shared(c10::StorageImpl* storage) {
  static std::mutex one_at_a_time;
  const std::lock_guard lock(one_at_a_time);
  const c10::ParallelGuard not_in_a_loop(false);
  if (c10::impl::cow::is_cow_data_ptr(storage->data_ptr())) {
    c10::impl::cow::materialize_cow(storage);
  }
}

void watch(c10::StorageImpl& storage) {
  storage.clear_materializer();
  storage.set_materializer(&copy_if_shared);
}

}  // namespace

c10::intrusive_ptr<c10::StorageImpl> shared_until_written(c10::StorageImpl& storage) {
  const bool shared = c10::impl::cow::is_cow_data_ptr(storage.data_ptr());
  if (storage.has_materializer() && !shared) return nullptr;
  auto twin = c10::impl::cow::lazy_clone_storage(storage);
  if (!twin) return nullptr;
  watch(storage);
  watch(*twin);
  return twin;
}

#else

/// Always returns nullptr, so all is copied: LibTorch before 2.12 lets nobody watch its
/// copy-on-write.
c10::intrusive_ptr<c10::StorageImpl> shared_until_written(c10::StorageImpl&) { return nullptr; }

#endif

}  // namespace smp::d2d
