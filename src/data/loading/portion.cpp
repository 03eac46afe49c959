// data/loading/portion.cpp: see the header.
#include "data/loading/portion.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/check.h"

namespace smp::data {
namespace {

// So much that a visit of a thread is worth its locks, and so little that the first batch comes
// soon and memory stays small.
constexpr std::int64_t kPortionBytes = 128 << 10;
constexpr std::int64_t kMostDocuments = 1024;

std::int64_t documents_of_portion(const DocumentSource& source) {
  const auto bytes_each = source.bytes() / source.size() + 1;
  return std::clamp<std::int64_t>(kPortionBytes / bytes_each, 1, kMostDocuments);
}

}  // namespace

TokenSpan Portion::tokens(std::size_t number, std::int64_t from, std::int64_t to) const {
  const auto& document = documents[number];
  if (document.shard != nullptr) {
    return document.shard->tokens(document.begin + from, document.begin + to);
  }
  const auto* const first = storage.data() + document.begin + from;
  return {reinterpret_cast<const std::byte*>(first), sizeof(std::int32_t), to - from};
}

PortionReader::PortionReader(const DocumentSource& source, const DocumentOrder& order,
                             Options options)
    : source_(source),
      order_(order),
      options_(options),
      documents_of_portion_(documents_of_portion(source)) {}

PortionReader::Range PortionReader::range(const Position& start, std::int64_t number) const {
  const auto documents = order_.documents();
  const auto portions_of = [&](std::int64_t count) {
    return (count + documents_of_portion_ - 1) / documents_of_portion_;
  };
  Range range{{start.epoch, start.index, 0}, 0};
  const auto first = portions_of(documents - start.index);  // of the epoch that is begun already
  if (number < first) {
    range.begin.index += number * documents_of_portion_;
  } else {
    const auto of_epoch = portions_of(documents);
    range.begin.epoch += 1 + (number - first) / of_epoch;
    range.begin.index = (number - first) % of_epoch * documents_of_portion_;
  }
  const bool over = options_.epochs > 0 && range.begin.epoch >= options_.epochs;
  if (!over) range.count = std::min(documents_of_portion_, documents - range.begin.index);
  return range;
}

Portion PortionReader::read(const Range& range) const {
  Portion portion;
  portion.begin = range.begin;
  portion.documents.reserve(static_cast<std::size_t>(range.count));
  try {
    for (std::int64_t i = 0; i < range.count; ++i) {
      append(order_.document(range.begin.epoch, range.begin.index + i), portion);
    }
  } catch (...) {  // said when all before it has been handed out
    portion.error = std::current_exception();
  }
  return portion;
}

std::optional<Portion> PortionReader::next(const Position& start, std::int64_t number) const {
  const auto wanted = range(start, number);
  if (wanted.count == 0) return std::nullopt;
  return read(wanted);
}

void PortionReader::append(std::int64_t number, Portion& portion) const {
  const auto found = source_.find(number);
  const auto before = portion.storage.size();
  try {
    portion.documents.push_back(tokenized(found, portion));
  } catch (const UsageError&) {
    if (!options_.skip_damaged) throw;
    portion.storage.resize(before);
    portion.documents.push_back({.skipped = true});
  }
}

TokenizedDocument PortionReader::tokenized(const DocumentSource::Found& found,
                                           Portion& portion) const {
  if (const auto* const shard = found.file.shard()) {
    const auto [begin, end] = shard->document(found.number);
    if (options_.skip_damaged) shard->tokens(begin, end);  // all replicas must skip the same
    return {.shard = shard, .begin = begin, .end = end};
  }
  std::string storage;
  const auto begin = portion.storage.size();
  options_.tokenizer->encode(found.file.text(found.number, storage), portion.storage);
  return {.begin = static_cast<std::int64_t>(begin),
          .end = static_cast<std::int64_t>(portion.storage.size())};
}

std::string PortionReader::place(const Range& range) const {
  return source_.place(order_.document(range.begin.epoch, range.begin.index));
}

}  // namespace smp::data
