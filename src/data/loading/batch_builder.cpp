// data/loading/batch_builder.cpp: see the header; and the public document_mask.
#include "data/loading/batch_builder.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>

#include <algorithm>
#include <numeric>

#include "base/check.h"

namespace smp::data {
namespace {

at::Tensor empty_rows(const StepShape& shape) {
  return at::empty({shape.rows, shape.context}, at::kLong);
}

}  // namespace

BatchBuilder::BatchBuilder(const StepShape& shape) : shape_(shape) {
  batch_.tokens = empty_rows(shape);
  batch_.targets = empty_rows(shape);
  batch_.counted = shape.own();
  tokens_ = batch_.tokens.data_ptr<std::int64_t>();
  targets_ = batch_.targets.data_ptr<std::int64_t>();
  if (!shape.reset_at_documents) return;
  batch_.positions = empty_rows(shape);
  batch_.documents = empty_rows(shape);
  positions_ = batch_.positions.data_ptr<std::int64_t>();
  documents_ = batch_.documents.data_ptr<std::int64_t>();
}

void BatchBuilder::put_tokens(std::int64_t at, const TokenSpan& tokens, bool begins) {
  tokens.copy_to(tokens_ + (at - shape_.begin()));
  annotate(at, tokens.size, begins);
}

void BatchBuilder::put_targets(std::int64_t at, const TokenSpan& targets) {
  targets.copy_to(targets_ + (at - shape_.begin()));
}

void BatchBuilder::ignore_target(std::int64_t at) {
  targets_[at - shape_.begin()] = kIgnoredTarget;
  --batch_.counted;
}

void BatchBuilder::fill_up(std::int64_t at, std::int32_t token) {
  const auto first = std::clamp<std::int64_t>(at - shape_.begin(), 0, shape_.own());
  std::fill(tokens_ + first, tokens_ + shape_.own(), token);
  annotate(shape_.begin() + first, shape_.own() - first, /*begins=*/true);
  const auto last = std::clamp<std::int64_t>(at - 1 - shape_.begin(), 0, shape_.own());
  std::fill(targets_ + last, targets_ + shape_.own(), kIgnoredTarget);
  batch_.counted -= shape_.own() - last;
}

void BatchBuilder::annotate(std::int64_t at, std::int64_t count, bool begins) {
  if (positions_ == nullptr) return;
  auto place = at - shape_.begin();
  for (const auto end = place + count; place < end; begins = false) {
    const auto column = place % shape_.context;
    const auto length = std::min(shape_.context - column, end - place);
    if (column == 0) {
      document_ = 0;
      begin_ = 0;
    } else if (begins) {
      ++document_;
      begin_ = column;
    }
    std::fill_n(documents_ + place, length, document_);
    std::iota(positions_ + place, positions_ + place + length, column - begin_);
    place += length;
  }
}

at::Tensor document_mask(const at::Tensor& documents) {
  SMP_REQUIRE(documents.defined() && documents.dim() == 2,
              "document_mask() takes Batch::documents, [rows, context]; they are there if "
              "reset_at_documents is set");
  const auto context = documents.size(1);
  const auto same = documents.unsqueeze(2).eq(documents.unsqueeze(1));  // [rows, query, key]
  const auto past = at::ones({context, context}, documents.options().dtype(at::kBool)).tril();
  return same.logical_and(past).unsqueeze(1);
}

}  // namespace smp::data
