// server/values/tensor_layout.h: where the elements of a tensor lie, so that a tensor on another
// rank has them in the same order, and a view of it there can be found again here. Threads: any.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace smp::server {

/// Sizes and strides of a tensor whose first element is `offset` elements into its memory.
struct Layout {
  at::DimVector sizes;
  at::DimVector strides;
  std::int64_t offset = 0;
};

/// Returns strides for the same sizes that keep the order of dimensions, which neighbours are
/// adjacent, and which elements are one (expanded, or windows that overlap), but span less memory:
/// every gap is one element. Equal to `strides` where there are no gaps.
at::DimVector compact_strides(at::IntArrayRef sizes, at::IntArrayRef strides);

/// True if elements of a tensor lie on each other in memory, as far as its strides tell: expand(),
/// unfold() with steps shorter than windows, as_strided(). Also true for some strides that only
/// look like that.
bool has_shared_elements(at::IntArrayRef sizes, at::IntArrayRef strides);

/// True if entries along dimension `d` have elements in common.
bool has_shared_elements_along(std::size_t d, at::IntArrayRef sizes, at::IntArrayRef strides);

/// Returns the number of elements of memory that a tensor spans, from its first one on.
std::int64_t span_of(at::IntArrayRef sizes, at::IntArrayRef strides);

/// Returns the dimensions that differ in memory, outermost first. Dimensions with one element, or
/// with stride 0, are left out; those that lie on each other are one, with all elements between.
Layout distinct_dimensions(at::IntArrayRef sizes, at::IntArrayRef strides);

/// Returns `view` of a tensor with these sizes and strides `from` as a view of a tensor with
/// strides `to`, its offset counted from the tensor's first element; both come from
/// compact_strides(). Nothing if it is none: it runs over the end of a row into the next, which
/// lies elsewhere there.
std::optional<Layout> map_view(const Layout& view, at::IntArrayRef sizes, at::IntArrayRef from,
                               at::IntArrayRef to);

}  // namespace smp::server
