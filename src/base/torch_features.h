// base/torch_features.h: what LibTorch has from some version on, by the headers that came with it.
#pragma once

/// 1 if LibTorch calls back before a storage is written to (in 2.13, not in 2.11): copy-on-write
/// can be watched, and memory that may not be written to can be lent.
#if __has_include(<c10/core/StorageMaterializer.h>)
#define SMP_STORAGES_CAN_BE_WATCHED 1
#else
#define SMP_STORAGES_CAN_BE_WATCHED 0
#endif

/// 1 if nodes of autograd's graphs count their owners themselves (in 2.13); in 2.11,
/// std::shared_ptr did.
#if __has_include(<torch/csrc/autograd/node.h>)
#define SMP_INTRUSIVE_NODES 1
#else
#define SMP_INTRUSIVE_NODES 0
#endif
