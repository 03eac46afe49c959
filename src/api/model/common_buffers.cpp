// api/model/common_buffers.cpp: see the header.
#include "api/model/common_buffers.h"

#include "module/running_statistics.h"
#include "partition/model/module_tree.h"
#include "server/values/guarded_tensor.h"

namespace smp {

bool stays_everywhere(const torch::nn::Module& holder, const at::Tensor& buffer) {
  if (module::is_normalisation(holder)) return false;
  return !server::can_be_guarded(buffer) ||
         buffer.storage().nbytes() <= static_cast<std::size_t>(partitioning::kSmallBuffer);
}

}  // namespace smp
