// d2d/tensors/copy_on_write.h: storages that share memory until somebody writes to one of them.
#pragma once

#include <c10/core/StorageImpl.h>

namespace smp::d2d {

/// Returns a storage with the memory of `storage`; nullptr: somebody else manages the memory.
/// Whichever of the two is written to first gets memory of its own then (c10/core/impl/COW.h);
/// threads may do so at once, but a pointer that was taken to read belongs to the memory that was
/// shared.
c10::intrusive_ptr<c10::StorageImpl> shared_until_written(c10::StorageImpl& storage);

}  // namespace smp::d2d
