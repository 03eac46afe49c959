// tp/slices/block_layout.h: the layout of a block, and between which slices it stands.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "tp/group/layout.h"

namespace smp::tp {

/// Returns the layout of a block of `layer`. @param name  as layout_of()
/// @throws UsageError  it is kMemory, and T does not divide `width`; `name` is unknown.
Layout layout_of_block(const std::string& name, std::int64_t width, const char* layer);
/// Returns why a block of the setting's layout and of `width` cannot be spread over `ranks` ranks;
/// or an empty text.
std::string obstacle_of_block(std::int64_t width, int ranks);

/// Checks that x is [.., width] between blocks, of at least `dims` dimensions; with kMemory, and
/// `sliced`, [.., width / T].
/// @throws UsageError  it is not; `sliced` with kSpeed.
void require_rows(Layout layout, const at::Tensor& x, std::int64_t width, bool sliced,
                  std::int64_t dims, const char* layer);

/// Returns what the ranks of a group have for each row of their batches of `batch` rows: [B, S], or
/// [1, S] or [S] for all rows of a batch, -> [T·B, S]; itself if it is undefined, or all ranks have
/// one batch.
at::Tensor rows_of_all(const at::Tensor& of_rows, std::int64_t batch);

}  // namespace smp::tp
