// report/export/event_file.cpp: little-endian numbers, and CRC-32C rotated as TFRecord files have
// it.
#include "report/export/event_file.h"

#include <boost/crc.hpp>

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

}  // namespace smp::report
