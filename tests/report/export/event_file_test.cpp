// Records that TensorBoard reads: tests/tensorboard_test.py lets it do so.
#include "report/export/event_file.h"

#include <gmock/gmock.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "report/export/event_file.pb.h"
#include "support/refusal.h"

namespace smp::report {
namespace event_file_test {

/// CRC-32C bit by bit, rotated.
std::uint32_t checksum(const std::string& bytes) {
  std::uint32_t sum = 0xFFFFFFFF;
  for (const char byte : bytes) {
    sum ^= static_cast<unsigned char>(byte);
    for (int bit = 0; bit < 8; ++bit) sum = (sum >> 1) ^ ((sum & 1) != 0 ? 0x82F63B78u : 0);
  }
  sum = ~sum;
  return ((sum >> 15) | (sum << 17)) + 0xa282ead8u;
}

template <class Number>
Number number_at(const std::string& bytes, std::size_t at) {
  Number number;
  std::memcpy(&number, bytes.data() + at, sizeof number);
  return number;
}

wire::Event event_in(const std::string& record) {
  const auto length = number_at<std::uint64_t>(record, 0);
  EXPECT_EQ(record.size(), length + 16);
  EXPECT_EQ(number_at<std::uint32_t>(record, 8), checksum(record.substr(0, 8)));
  const auto message = record.substr(12, length);
  EXPECT_EQ(number_at<std::uint32_t>(record, 12 + length), checksum(message));
  wire::Event event;
  EXPECT_TRUE(event.ParseFromString(message));
  return event;
}

TEST(EventFile, BeginsWithItsVersion) {
  const auto event = event_in(event_file_header(12.5));
  EXPECT_EQ(event.wall_time(), 12.5);
  EXPECT_EQ(event.file_version(), "brain.Event:2");
}

TEST(EventFile, HasARecordAStep) {
  const auto event = event_in(
      event_record(13.5, 7, {{"loss", 2.5}, {"norm", std::numeric_limits<double>::infinity()}}));
  EXPECT_EQ(event.wall_time(), 13.5);
  EXPECT_EQ(event.step(), 7);
  ASSERT_EQ(event.summary().value_size(), 2);
  EXPECT_EQ(event.summary().value(0).tag(), "loss");
  EXPECT_EQ(event.summary().value(0).simple_value(), 2.5F);
  EXPECT_TRUE(std::isinf(event.summary().value(1).simple_value()));
}

/// A reader takes a value that was left out for none: a curve of zeros would have no points.
TEST(EventFile, WritesZeros) {
  const auto event = event_in(event_record(13.5, 7, {{"spike", 0}}));
  EXPECT_TRUE(event.summary().value(0).has_simple_value());
  EXPECT_EQ(event.summary().value(0).simple_value(), 0.0F);
  EXPECT_NE(event_record(1, 1, {{"spike", 0}}).find(std::string("spike\x15\0\0\0\0", 10)),
            std::string::npos);
}

TEST(EventFile, ChecksumIsThatOfTheSpecification) {
  EXPECT_EQ(checksum("123456789"), [] {
    const std::uint32_t known = 0xE3069283;
    return ((known >> 15) | (known << 17)) + 0xa282ead8u;
  }());
}

/// Steps 1 to 4, then 3 again, as two jobs leave that do not know of each other.
std::string file_of_two_jobs() {
  std::string file = event_file_header(1);
  for (const int step : {1, 2, 3, 4, 3}) file += event_record(10 + step, step, {{"loss", step}});
  return file;
}

TEST(EventFile, IsCutAfterAStep) {
  const auto file = file_of_two_jobs();
  auto expected = event_file_header(1);
  for (const int step : {1, 2}) expected += event_record(10 + step, step, {{"loss", step}});
  EXPECT_EQ(events_until(file, 2, "events"), expected);
  EXPECT_EQ(events_until(file, 0, "events"), event_file_header(1));
  EXPECT_EQ(events_until(file, 4, "events"), file);
  EXPECT_EQ(events_until("", 4, "events"), "");
}

/// At whatever byte the process was killed.
TEST(EventFile, LosesATornEnd) {
  const auto whole = event_file_header(1) + event_record(2, 1, {{"loss", 1}});
  const auto record = event_record(3, 2, {{"loss", 2}});
  for (std::size_t size = 0; size < record.size(); ++size) {
    EXPECT_EQ(events_until(whole + record.substr(0, size), 9, "events"), whole) << size;
  }
  EXPECT_EQ(events_until(whole + record, 9, "events"), whole + record);
}

TEST(EventFile, WithABrokenRecordIsRefused) {
  const auto header = event_file_header(1);
  for (std::size_t byte = 0; byte < header.size(); ++byte) {
    auto file = file_of_two_jobs();
    file[byte] = static_cast<char>(file[byte] ^ 1);
    EXPECT_THAT(refusal<UsageError>([&] { (void)events_until(file, 2, "runs/a/events"); }),
                testing::HasSubstr("runs/a/events: the record at byte 0 is broken"))
        << byte;
  }
  auto file = file_of_two_jobs();
  file[header.size() + 20] = static_cast<char>(file[header.size() + 20] ^ 1);
  EXPECT_THAT(refusal<UsageError>([&] { (void)events_until(file, 2, "events"); }),
              testing::HasSubstr(base::concat("the record at byte ", header.size(), " is broken")));
}

}  // namespace event_file_test
}  // namespace smp::report
