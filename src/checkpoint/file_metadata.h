// checkpoint/file_metadata.h: what files that this library writes say beside a program's texts.
#pragma once

#include "checkpoint/safetensors_header.h"

namespace smp::checkpoints {

/// Returns `metadata` with the format that Python's tools ask for: "pt" means tensors of PyTorch.
/// @param what  the operation, for messages
/// @throws UsageError  an entry has a name that this library writes itself.
Metadata with_format(Metadata metadata, const char* what);

}  // namespace smp::checkpoints
