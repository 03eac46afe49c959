// server/protocol/frame_extra.cpp: notes, settings, key, flags, in this order.
#include "server/protocol/frame_extra.h"

#include <cstring>
#include <utility>

#include "base/check.h"

namespace smp::server::wire {
namespace {

std::size_t num_further(std::size_t num_tensors) {
  return num_tensors > kFlagsInHeader ? num_tensors - kFlagsInHeader : 0;
}

void append_size(std::uint64_t size, std::string& bytes) {
  bytes.append(reinterpret_cast<const char*>(&size), sizeof size);
}

/// Takes a size off the beginning of `bytes`.
std::uint64_t take_size(std::string_view& bytes) {
  std::uint64_t size = 0;
  SMP_ASSERT(bytes.size() >= sizeof size, bytes.size(), " bytes where a size should be");
  std::memcpy(&size, bytes.data(), sizeof size);
  bytes.remove_prefix(sizeof size);
  return size;
}

}  // namespace

std::uint64_t first_flags(const TensorFlags& flags) {
  std::uint64_t bits = 0;
  for (std::size_t i = 0; i < flags.size() && i < kFlagsInHeader; ++i) {
    bits |= std::uint64_t{flags[i]} << i;
  }
  return bits;
}

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// ---- writing -----------------------------------------------------------------------------------

void ExtraWriter::put_notes(const Notes& notes, Start& start) {
  if (notes.links.empty() && notes.forms.empty() && notes.hooked.empty() &&
      notes.withheld.empty() && notes.inner.empty()) {
    return;
  }
  start.flags |= kNotes;
  put_note(notes.links);
  put_note(notes.forms);
  put_note(notes.hooked);
  put_note(notes.withheld);
  put_note(notes.inner);
}

void ExtraWriter::put_note(std::string_view note) {
  append_size(note.size(), bytes_);
  bytes_ += note;
}

void ExtraWriter::put_further_settings(const Settings& settings) {
  put_note(settings.further.view());
}

void ExtraWriter::put_settings(const Settings& settings) {
  bytes_.append(reinterpret_cast<const char*>(&settings.first), sizeof settings.first);
  put_further_settings(settings);
}

void ExtraWriter::put_key(const OrderKey& key, ForwardHeader& header) {
  const auto bytes = key.bytes();
  if (bytes.size() < kShortKey) {
    header.key[0] = static_cast<char>(bytes.size());
    std::memcpy(header.key + 1, bytes.data(), bytes.size());
    return;
  }
  header.start.flags |= kLongKey;
  bytes_ += bytes;
}

void ExtraWriter::put_further_flags(const TensorFlags& flags) {
  for (std::size_t i = kFlagsInHeader; i < flags.size(); ++i) bytes_ += flags[i] ? '\1' : '\0';
}

// ---- reading -----------------------------------------------------------------------------------

std::string_view ExtraReader::take(std::uint64_t size) {
  SMP_ASSERT(size <= bytes_.size(), size, " bytes of ", bytes_.size(), " in front of a body");
  const auto taken = bytes_.substr(0, size);
  bytes_.remove_prefix(size);
  return taken;
}

Notes ExtraReader::take_notes(const Start& start) {
  if ((start.flags & kNotes) == 0) return {};
  Notes notes;
  notes.links = take_note();
  notes.forms = take_note();
  notes.hooked = take_note();
  notes.withheld = take_note();
  notes.inner = take_note();
  return notes;
}

std::string ExtraReader::take_note() { return std::string(take(take_size(bytes_))); }

Settings ExtraReader::take_further_settings(std::uint64_t first) {
  return {false, first, take_note()};
}

Settings ExtraReader::take_settings() {
  std::uint64_t first = 0;
  std::memcpy(&first, take(sizeof first).data(), sizeof first);
  return take_further_settings(first);
}

OrderKey ExtraReader::take_key(const ForwardHeader& header, std::size_t num_tensors) {
  if ((header.start.flags & kLongKey) == 0) {
    const auto size = static_cast<std::size_t>(header.key[0]);
    SMP_ASSERT(size < kShortKey, "an order key of ", size, " bytes");
    return OrderKey::from_bytes({header.key + 1, size});
  }
  const auto flags = num_further(num_tensors);
  SMP_ASSERT(bytes_.size() >= flags, bytes_.size(), " bytes for a key and ", flags, " flags");
  return OrderKey::from_bytes(take(bytes_.size() - flags));
}

TensorFlags ExtraReader::take_flags(std::uint64_t first, std::size_t num_tensors) {
  SMP_ASSERT(bytes_.size() == num_further(num_tensors), bytes_.size(), " further flags of ",
             num_tensors, " tensors");
  const auto further = take(bytes_.size());
  TensorFlags flags;
  for (std::size_t i = 0; i < num_tensors; ++i) {
    flags.push_back(i < kFlagsInHeader ? ((first >> i) & 1) != 0
                                       : further[i - kFlagsInHeader] != '\0');
  }
  return flags;
}

// ---- in front of the body ----------------------------------------------------------------------

Body::Body(const ExtraWriter& extra, const std::string& bytes, Start& start) : view_(bytes) {
  const auto size = extra.bytes().size();
  if (size == 0) return;
  if (size < Start::kCounted) {
    start.long_bytes = static_cast<std::uint16_t>(size);
  } else {
    start.long_bytes = Start::kCounted;
    append_size(size, joined_);
  }
  joined_ += extra.bytes();
  joined_ += bytes;
  view_ = joined_;
}

SplitBody split_body(const d2d::ArrivedFrame& frame, const Start& start) {
  auto body = text_of(frame.body);
  std::uint64_t size = start.long_bytes;
  if (size == Start::kCounted) size = take_size(body);
  SMP_ASSERT(size <= body.size(), size, " of ", body.size(), " bytes");
  return {ExtraReader(body.substr(0, size)), body.substr(size)};
}

}  // namespace smp::server::wire
