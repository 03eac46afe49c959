// tp/slices/block_layout.cpp: see the header.
#include "tp/slices/block_layout.h"

#include <ATen/ATen.h>

#include "base/check.h"
#include "smp/tp/batch_primitives.h"
#include "tp/group/tensor_parallel.h"

namespace smp::tp {

Layout layout_of_block(const std::string& name, std::int64_t width, const char* layer) {
  const auto layout = layout_of(name, layer);
  const auto ranks = TensorParallel::current().size();
  SMP_REQUIRE(layout != Layout::kMemory || width % ranks == 0, layer,
              ": with optimize \"memory\" width ", width, " cannot be divided by the ", ranks,
              " tensor-parallel ranks; choose a width that can, optimize \"speed\", or another "
              "tensor_parallel_degree");
  return layout;
}

std::string obstacle_of_block(std::int64_t width, int ranks) {
  const bool cut = TensorParallel::current().layout() == Layout::kMemory;
  if (!cut || width % ranks == 0) return {};
  return base::concat("width ", width, " cannot be divided by ", ranks,
                      ", which optimize \"memory\" needs");
}

void require_rows(Layout layout, const at::Tensor& x, std::int64_t width, bool sliced,
                  std::int64_t dims, const char* layer) {
  SMP_REQUIRE(!sliced || layout == Layout::kMemory, layer,
              ": forward_slices with layout \"speed\", which all layers have on a single "
              "tensor-parallel rank; call forward, or set optimize to \"memory\"");
  const auto expected = sliced ? width / TensorParallel::current().size() : width;
  SMP_REQUIRE(x.defined() && x.dim() >= dims && x.size(-1) == expected, layer, ": input is ",
              x.defined() ? base::concat(x.sizes()) : "undefined", ", expected [batch, ",
              dims == 3 ? "sequence, " : ".., ", expected, "]; check the width");
}

at::Tensor rows_of_all(const at::Tensor& of_rows, std::int64_t batch) {
  const auto& group = TensorParallel::current();
  if (!of_rows.defined() || of_rows.dim() > 2 || group.same_batch() || group.size() == 1) {
    return of_rows;
  }
  const auto rows = of_rows.dim() == 1 ? of_rows.unsqueeze(0) : of_rows;
  if (rows.size(0) == batch) return whole_batch_for_tp(rows);
  // What all rows of a batch share need not be that of another rank's.
  return rows.size(0) == 1 ? whole_batch_for_tp(rows).repeat_interleave(batch, 0) : of_rows;
}

}  // namespace smp::tp
