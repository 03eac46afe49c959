// report/export/event_file.cpp: little-endian numbers, and CRC-32C rotated as TFRecord files have
// it.
#include "report/export/event_file.h"

#include <boost/crc.hpp>
#include <optional>
#include <string_view>

#include "base/check.h"
#include "report/export/event_file.pb.h"

namespace smp::report {
namespace {

/// Returns the CRC-32C of `bytes`, masked as TensorBoard wants it: a plain checksum of data that
/// hold checksums themselves would be weak.
std::uint32_t masked_checksum(const std::string& bytes) {
  boost::crc_optimal<32, 0x1EDC6F41, 0xFFFFFFFF, 0xFFFFFFFF, true, true> checksum;
  checksum.process_bytes(bytes.data(), bytes.size());
  const std::uint32_t sum = checksum.checksum();
  return ((sum >> 15) | (sum << 17)) + 0xa282ead8u;
}

constexpr std::size_t kHead = 12;  // of a record: length and its checksum
constexpr std::size_t kTail = 4;   // the checksum of its message

template <class Number>
Number number_at(std::string_view bytes, std::size_t at) {
  Number number = 0;
  for (std::size_t i = 0; i < sizeof number; ++i) {
    number |= static_cast<Number>(static_cast<unsigned char>(bytes[at + i])) << (8 * i);
  }
  return number;
}

template <class Number>
std::string little_endian(Number number) {
  std::string bytes;
  for (std::size_t i = 0; i < sizeof number; ++i) {
    bytes.push_back(static_cast<char>(number >> (8 * i) & 0xff));
  }
  return bytes;
}

std::string record_of(const wire::Event& event) {
  const auto message = event.SerializeAsString();
  const auto length = little_endian(static_cast<std::uint64_t>(message.size()));
  return length + little_endian(masked_checksum(length)) + message +
         little_endian(masked_checksum(message));
}

/// Returns the message of the record at `at`; nothing if the file ends before the record does.
/// @throws UsageError  one of its checksums is wrong.
std::optional<std::string> message_at(std::string_view bytes, std::size_t at,
                                      const std::string& name) {
  const auto require = [&](std::string_view part, std::size_t checksum) {
    SMP_REQUIRE(number_at<std::uint32_t>(bytes, checksum) == masked_checksum(std::string(part)),
                name, ": the record at byte ", at,
                " is broken, and TensorBoard reads no further than that; remove the file, and its "
                "curves begin with this job");
  };
  if (bytes.size() - at < kHead) return std::nullopt;
  require(bytes.substr(at, kHead - 4), at + kHead - 4);
  const auto length = number_at<std::uint64_t>(bytes, at);
  const auto left = bytes.size() - at - kHead;
  if (left < kTail || length > left - kTail) return std::nullopt;
  const auto message = bytes.substr(at + kHead, length);
  require(message, at + kHead + length);
  return std::string(message);
}

}  // namespace

std::string event_file_header(double seconds) {
  wire::Event event;
  event.set_wall_time(seconds);
  event.set_file_version("brain.Event:2");
  return record_of(event);
}

std::string event_record(double seconds, std::int64_t step,
                         const std::vector<std::pair<std::string, double>>& numbers) {
  wire::Event event;
  event.set_wall_time(seconds);
  event.set_step(step);
  for (const auto& [name, number] : numbers) {
    auto& value = *event.mutable_summary()->add_value();
    value.set_tag(name);
    value.set_simple_value(static_cast<float>(number));
  }
  return record_of(event);
}

std::string events_until(const std::string& bytes, std::int64_t last_step,
                         const std::string& name) {
  std::string kept;
  for (std::size_t at = 0; at < bytes.size();) {
    const auto message = message_at(bytes, at, name);
    if (!message) break;
    const auto size = kHead + message->size() + kTail;
    wire::Event event;
    SMP_REQUIRE(event.ParseFromString(*message), name, ": the record at byte ", at,
                " is none of TensorBoard's");
    if (event.step() <= last_step) kept += bytes.substr(at, size);
    at += size;
  }
  return kept;
}

}  // namespace smp::report
