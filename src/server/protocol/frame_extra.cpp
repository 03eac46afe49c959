// server/protocol/frame_extra.cpp: notes, settings, key, flags, in this order.
#include "server/protocol/frame_extra.h"

#include <cstring>
#include <limits>
#include <utility>

#include "base/check.h"

namespace smp::server::wire {
namespace {

std::size_t num_further(std::size_t num_tensors) {
  return num_tensors > kFlagsInHeader ? num_tensors - kFlagsInHeader : 0;
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
  const std::uint64_t size = note.size();
  bytes_.append(reinterpret_cast<const char*>(&size), sizeof size);
  bytes_ += note;
}

void ExtraWriter::put_further_settings(const Settings& settings) {
  const auto further = settings.further.view();
  const auto size = static_cast<std::uint16_t>(further.size());
  SMP_REQUIRE_AS(UnsupportedError, size == further.size(),
                 "a module of more than 500,000 modules and parameters cannot be called on another "
                 "rank; call its parts");
  bytes_.push_back(static_cast<char>(size & 0xff));
  bytes_.push_back(static_cast<char>(size >> 8));
  bytes_ += further;
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

std::string ExtraReader::take_note() {
  std::uint64_t size = 0;
  std::memcpy(&size, take(sizeof size).data(), sizeof size);
  return std::string(take(size));
}

Settings ExtraReader::take_further_settings(std::uint64_t first) {
  const auto size = take(2);
  const auto low = static_cast<unsigned char>(size[0]), high = static_cast<unsigned char>(size[1]);
  return {false, first, std::string(take(low | std::uint64_t{high} << 8))};
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
  SMP_REQUIRE_AS(UnsupportedError, size <= std::numeric_limits<std::uint16_t>::max(),
                 "a module call cannot be sent to another rank: what is said of its tensors has ",
                 size, " bytes, at most ", std::numeric_limits<std::uint16_t>::max(),
                 " are possible. It has more than 60,000 tensors, or is nested as deeply, or more "
                 "than 1,000 arguments are promised; pack the tensors into fewer, or set "
                 "promised_outputs = false");
  start.long_bytes = static_cast<std::uint16_t>(size);
  joined_ = extra.bytes() + bytes;
  view_ = joined_;
}

SplitBody split_body(const d2d::ArrivedFrame& frame, const Start& start) {
  const auto body = text_of(frame.body);
  SMP_ASSERT(start.long_bytes <= body.size(), start.long_bytes, " of ", body.size(), " bytes");
  return {ExtraReader(body.substr(0, start.long_bytes)), body.substr(start.long_bytes)};
}

}  // namespace smp::server::wire
