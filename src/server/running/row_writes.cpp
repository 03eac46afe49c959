// server/running/row_writes.cpp: what has no kernel of ours is as without the key.
#include "server/running/row_writes.h"

#include <torch/library.h>

namespace smp::server {

SeesRowWrites::SeesRowWrites() : include_(kRowWrites) {}

}  // namespace smp::server

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericMode, library) {
  library.fallback(torch::CppFunction::makeFallthrough());
}
