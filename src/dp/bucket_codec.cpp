// dp/bucket_codec.cpp: see the header.
#include "dp/bucket_codec.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "base/check.h"
#include "d2d/tensors/tensor_data.h"
#include "dp/flat_tensors.h"

namespace smp::dp {

std::vector<at::Tensor> BucketCodec::encode(const d2d::SumParts::Pieces& pieces, int position,
                                            bool sum) {
  const at::NoGradGuard no_grad;
  auto encoded = hook_.compress(flattened(pieces), {bucket_, position, sum});
  for (std::size_t i = 0; i < encoded.size(); ++i) {
    SMP_REQUIRE(encoded[i].defined(), "CommHook::compress() gave an undefined tensor for part ",
                position, " of bucket ", bucket_, "; leave it out");
    d2d::check_sendable(encoded[i], i);
    encoded[i] = d2d::contiguous_data(encoded[i]);
  }
  return encoded;
}

d2d::SumParts::Pieces BucketCodec::decode(const std::vector<at::Tensor>& encoded,
                                          const d2d::SumParts::Pieces& like, int position,
                                          bool sum) {
  const at::NoGradGuard no_grad;
  std::int64_t elements = 0;
  for (const auto& piece : like) elements += piece.numel();
  const auto wanted = at::empty({elements}, like.at(0).options());
  const auto row = hook_.decompress(encoded, wanted, {bucket_, position, sum});
  SMP_REQUIRE(row.defined() && row.sizes() == wanted.sizes() && row.dtype() == wanted.dtype(),
              "CommHook::decompress() of part ", position, " of bucket ", bucket_, " is to give ",
              wanted.scalar_type(), ' ', wanted.sizes(), ", but gave ",
              row.defined() ? base::concat(row.scalar_type(), ' ', row.sizes()) : "nothing");
  d2d::SumParts::Pieces pieces;
  std::int64_t start = 0;
  for (const auto& piece : like) {
    pieces.push_back(row.narrow(0, start, piece.numel()));
    start += piece.numel();
  }
  return pieces;
}

}  // namespace smp::dp
