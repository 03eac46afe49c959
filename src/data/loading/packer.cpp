// data/loading/packer.cpp: see the header.
#include "data/loading/packer.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "base/check.h"

namespace smp::data {

Packer::Packer(const Options& options, const LoaderPlace& start,
               std::function<std::optional<Portion>()> more)
    : options_(options), more_(std::move(more)), offset_(start.position.offset), place_(start) {}

std::optional<PackedBatch> Packer::next() {
  while (!complete_ && !over_) {
    if (find_document()) {
      put(run());
    } else {
      end_of_all();
    }
  }
  return std::exchange(complete_, std::nullopt);
}

// Goes to the document that the next token belongs to; false: there is none.
bool Packer::find_document() {
  while (true) {
    if (portion_ && document_ < portion_->documents.size()) {
      const bool skipped = portion_->documents[document_].skipped;
      SMP_REQUIRE(offset_ == 0 || (!skipped && offset_ < length()),
                  "the state of a token loader cannot be loaded: it lies at token ", offset_,
                  " of a document that has ", skipped ? 0 : length(),
                  ": the documents have changed, or how they are tokenised");
      if (!skipped) return true;
      skip();
      continue;
    }
    if (portion_ && portion_->error) std::rethrow_exception(portion_->error);
    portion_ = more_();
    document_ = 0;
    if (!portion_) return false;
  }
}

// One epoch may end with all that is damaged and the next begin with it: a whole epoch counts.
void Packer::skip() {
  ++place_.counters.skipped;
  ++document_;
  ++skipped_in_a_row_;
  const auto index = portion_->begin.index + static_cast<std::int64_t>(document_);
  SMP_REQUIRE(index < options_.documents || skipped_in_a_row_ < options_.documents, "all ",
              options_.documents,
              " documents are damaged; read them with skip_damaged off to see what is wrong");
}

// With begin and end.
std::int64_t Packer::length() const {
  const auto& document = portion_->documents[document_];
  return document.end - document.begin + (options_.begin_token ? 2 : 1);
}

Packer::Run Packer::run() const {
  const auto begin_tokens = options_.begin_token ? 1 : 0;
  if (offset_ < begin_tokens) return {1, &*options_.begin_token, 0};
  const auto left = length() - 1 - offset_;
  if (left == 0) return {1, &options_.end_token, 0};
  return {left, nullptr, offset_ - begin_tokens};
}

// Tokens `from` to `to` - 1 of the run.
TokenSpan Packer::tokens(const Run& run, std::int64_t from, std::int64_t to) const {
  if (run.special == nullptr) {
    return portion_->tokens(document_, run.first + from, run.first + to);
  }
  return {reinterpret_cast<const std::byte*>(run.special), sizeof(std::int32_t), to - from};
}

// Puts as much of the run as the step takes.
void Packer::put(const Run& run) {
  skipped_in_a_row_ = 0;
  if (pending_) return complete_pending(run);
  if (!open_) open_.emplace(options_.shape);
  const Run taken{std::min(run.size, options_.shape.all() - filled_), run.special, run.first};
  put_own(taken);
  if (offset_ == 0) ++place_.counters.documents;
  filled_ += taken.size;
  offset_ += taken.size;
  const auto position = position_behind();
  if (offset_ == length()) {
    ++document_;
    offset_ = 0;
  }
  if (filled_ == options_.shape.all()) end_step(position, filled_);
}

// Of a shard, only what this replica needs is touched.
void Packer::put_own(const Run& run) {
  const auto& shape = options_.shape;
  const auto first = std::max(filled_, shape.begin());
  const auto last = std::min(filled_ + run.size, shape.end() + 1);  // one more, as a target
  if (first >= last) return;
  const auto own = tokens(run, first - filled_, last - filled_);
  const auto inputs = std::min(last, shape.end()) - first;
  if (inputs > 0) open_->put_tokens(first, own.part(0, inputs), offset_ == 0 && first == filled_);
  const auto before = first == shape.begin() ? 1 : 0;  // a token that is nobody's target here
  if (own.size > before)
    open_->put_targets(first + before - 1, own.part(before, own.size - before));
  const bool crosses = offset_ == 0 && first == filled_ && before == 0;
  if (crosses && options_.ignore_across_documents) open_->ignore_target(first - 1);
}

// The first token of `run` is the last target of the step before.
void Packer::complete_pending(const Run& run) {
  const auto& shape = options_.shape;
  if (shape.end() == shape.all()) {
    const bool ignored = offset_ == 0 && options_.ignore_across_documents;
    if (ignored) {
      open_->ignore_target(shape.end() - 1);
    } else {
      open_->put_targets(shape.end() - 1, tokens(run, 0, 1));
    }
  }
  pending_->batch = open_->take();
  open_.reset();
  complete_ = std::exchange(pending_, std::nullopt);
}

// What open_ holds is a batch, but for its last target perhaps.
void Packer::end_step(const Position& position, std::int64_t tokens) {
  place_.position = position;
  ++place_.counters.steps;
  place_.counters.tokens += tokens;
  place_.counters.epoch = position.epoch;
  pending_.emplace(PackedBatch{{}, place_});
  filled_ = 0;
}

Position Packer::position_behind() const {
  Position position = portion_->begin;
  position.index += static_cast<std::int64_t>(document_);
  position.offset = offset_;
  if (offset_ < length()) return position;
  position.offset = 0;
  if (++position.index < options_.documents) return position;
  return {position.epoch + 1, 0, 0};
}

void Packer::end_of_all() {
  over_ = true;
  const auto& shape = options_.shape;
  if (pending_) {
    if (shape.end() == shape.all()) open_->ignore_target(shape.end() - 1);
    place_.position = {options_.epochs, 0, 0};  // behind documents that were skipped since
    place_.counters.epoch = options_.epochs;
    pending_->after = place_;
  } else if (filled_ > 0 && !options_.drop_last) {
    open_->fill_up(filled_, options_.end_token);
    end_step({options_.epochs, 0, 0}, filled_);
  } else {
    return;
  }
  pending_->batch = open_->take();
  complete_ = std::exchange(pending_, std::nullopt);
}

}  // namespace smp::data
