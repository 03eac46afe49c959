// data/shards/megatron_tokens.cpp: numbers are little-endian, and not aligned. PREFIX.idx has
//   9 bytes "MMIDIDX\0\0"; the version, 1, of 64 bits; the type of tokens, 8 bits;
//   S, the number of sequences, and D + 1, one more than documents: of 64 bits;
//   S lengths in tokens, of 32 bits; S places in PREFIX.bin, in bytes, of 64 bits;
//   D + 1 numbers of the sequences that begin documents, of 64 bits; perhaps S bytes more, modes.
#include "data/shards/megatron_tokens.h"

#include <algorithm>
#include <cstring>
#include <string_view>

#include "base/check.h"

namespace smp::data {
namespace {

using std::string_view_literals::operator""sv;

constexpr auto kIndexMagic = "MMIDIDX\0\0"sv;
constexpr std::uint64_t kIndexHeaderBytes = 34;
constexpr int kInt32 = 4;
constexpr int kUint16 = 8;

std::string prefix_of(const std::string& path) {
  return path.ends_with(".bin") || path.ends_with(".idx") ? path.substr(0, path.size() - 4) : path;
}

// The largest, without a branch for each. A negative number is a large one.
template <class Stored>
std::uint32_t largest_of(const TokenSpan& span) {
  const auto* const tokens = reinterpret_cast<const Stored*>(span.data);
  Stored most = 0;
  for (std::int64_t i = 0; i < span.size; ++i) most = std::max(most, tokens[i]);
  return most;
}

}  // namespace

MegatronTokens::MegatronTokens(const std::string& path, const MegatronVocabulary& vocabulary)
    : index_(prefix_of(path) + ".idx"), tokens_(prefix_of(path) + ".bin") {
  SMP_REQUIRE(vocabulary.size > 0 && vocabulary.size <= std::int64_t{1} << 31, path,
              ": files of Megatron do not say how many tokens there are: set "
              "DocumentOptions::vocab_size, which is ",
              vocabulary.size);
  SMP_REQUIRE(vocabulary.end_of_document >= 0 && vocabulary.end_of_document < vocabulary.size, path,
              ": files of Megatron do not say which token ends a document: set "
              "DocumentOptions::end_of_document, which is ",
              vocabulary.end_of_document, " of ", vocabulary.size);
  info_.vocab_size = vocabulary.size;
  info_.end_of_document = vocabulary.end_of_document;
  read_header();
  check_ends();
}

void MegatronTokens::read_header() {
  const auto bytes = index_.bytes();
  SMP_REQUIRE(bytes.size() >= kIndexHeaderBytes && bytes.starts_with(kIndexMagic), index_.path(),
              ": bytes 0 to 33 are not the head of an index of Megatron's tokens");
  const auto version = number_at<std::uint64_t>(9);
  SMP_REQUIRE(version == 1, index_.path(), ": bytes 9 to 16: version ", version,
              " of the format; 1 is known");
  const auto type = static_cast<int>(number_at<std::uint8_t>(17));
  SMP_REQUIRE(type == kInt32 || type == kUint16, index_.path(), ": byte 17: tokens of type ", type,
              "; ", kInt32, " (32 bits) and ", kUint16, " (16 bits, unsigned) are read");
  info_.token_bytes = type == kInt32 ? 4 : 2;
  const auto sequences = number_at<std::uint64_t>(18);
  const auto documents = number_at<std::uint64_t>(26);
  const auto most = bytes.size();
  SMP_REQUIRE(sequences <= most && documents <= most && documents > 0, index_.path(),
              ": bytes 18 to 33: ", sequences, " sequences and ", documents,
              " beginnings of documents in a file of ", most, " bytes: it is cut short or damaged");
  const auto expected = kIndexHeaderBytes + 12 * sequences + 8 * documents;
  SMP_REQUIRE(most == expected || most == expected + sequences, index_.path(), ": has ", most,
              " bytes, but ", expected, " for its ", sequences, " sequences and ", documents,
              " beginnings of documents: it is cut short or damaged");
  sequences_ = static_cast<std::int64_t>(sequences);
  info_.documents = static_cast<std::int64_t>(documents) - 1;
  info_.tokens = static_cast<std::int64_t>(tokens_.bytes().size()) / info_.token_bytes;
}

void MegatronTokens::check_ends() const {
  const auto first = first_sequence(0);
  const auto last = first_sequence(info_.documents);
  SMP_REQUIRE(first == 0 && last == sequences_, index_.path(), ": its documents are sequences ",
              first, " to ", last, " of ", sequences_, ": it is damaged");
  const auto size = static_cast<std::int64_t>(tokens_.bytes().size());
  const auto begin = sequences_ == 0 ? 0 : pointer(sequences_ - 1);
  const auto bytes = sequences_ == 0 ? 0 : length(sequences_ - 1) * info_.token_bytes;
  SMP_REQUIRE(begin >= 0 && begin <= size && begin + bytes == size, tokens_.path(), ": has ", size,
              " bytes, but the last sequence of ", index_.path(), " is ", bytes, " from byte ",
              begin, " on: it is cut short, or of another index");
}

MegatronTokens::Range MegatronTokens::document(std::int64_t number) const {
  SMP_ASSERT(number >= 0 && number < info_.documents, number, " of ", info_.documents);
  const auto first = first_sequence(number);
  const auto last = first_sequence(number + 1);
  SMP_REQUIRE(0 <= first && first <= last && last <= sequences_, index_.path(), ": document ",
              number, " would be sequences ", first, " to ", last, " of ", sequences_,
              ": it is damaged");
  if (first == last) return {0, 0};
  const auto begin = pointer(first);
  auto end = begin;
  const auto size = static_cast<std::int64_t>(tokens_.bytes().size());
  for (auto sequence = first; sequence < last; ++sequence) {
    const auto bytes = length(sequence) * info_.token_bytes;
    const auto next = sequence + 1 < sequences_ ? pointer(sequence + 1) : size;
    SMP_REQUIRE(end >= 0 && end % info_.token_bytes == 0 && bytes >= 0 && bytes <= size - end &&
                    end + bytes == next,
                index_.path(), ": sequence ", sequence, " of document ", number, " would be ",
                bytes, " bytes from byte ", end, " of ", size, " on, and what follows begins at ",
                next, ": it is damaged");
    end += bytes;
  }
  Range range{begin / info_.token_bytes, end / info_.token_bytes};
  if (range.begin < range.end) {
    std::int64_t last_token = 0;
    span(range.end - 1, range.end).copy_to(&last_token);
    if (last_token == info_.end_of_document) --range.end;
  }
  return range;
}

TokenSpan MegatronTokens::tokens(std::int64_t begin, std::int64_t end) const {
  SMP_ASSERT(begin >= 0 && begin <= end && end <= info_.tokens, begin, " to ", end);
  const auto found = span(begin, end);
  const auto most =
      info_.token_bytes == 2 ? largest_of<std::uint16_t>(found) : largest_of<std::uint32_t>(found);
  SMP_REQUIRE(begin == end || most < static_cast<std::uint64_t>(info_.vocab_size), path(),
              ": bytes ", begin * info_.token_bytes, " to ", end * info_.token_bytes - 1,
              " hold token ", most, ", but DocumentOptions::vocab_size is ", info_.vocab_size);
  return found;
}

template <class Number>
Number MegatronTokens::number_at(std::uint64_t offset) const {
  Number number;
  std::memcpy(&number, index_.bytes().data() + offset, sizeof(number));
  return number;
}

std::int64_t MegatronTokens::length(std::int64_t sequence) const {
  return number_at<std::int32_t>(kIndexHeaderBytes + 4 * static_cast<std::uint64_t>(sequence));
}

std::int64_t MegatronTokens::pointer(std::int64_t sequence) const {
  return number_at<std::int64_t>(kIndexHeaderBytes +
                                 4 * static_cast<std::uint64_t>(sequences_ + 2 * sequence));
}

std::int64_t MegatronTokens::first_sequence(std::int64_t document) const {
  return number_at<std::int64_t>(kIndexHeaderBytes +
                                 4 * static_cast<std::uint64_t>(3 * sequences_ + 2 * document));
}

TokenSpan MegatronTokens::span(std::int64_t begin, std::int64_t end) const {
  const auto* const bytes = reinterpret_cast<const std::byte*>(tokens_.bytes().data());
  return {bytes + begin * info_.token_bytes, info_.token_bytes, end - begin};
}

}  // namespace smp::data
