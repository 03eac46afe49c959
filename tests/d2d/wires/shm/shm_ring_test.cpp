// d2d/wires/shm_ring_test.cpp: records arrive whole and in order, whatever their sizes.
#include "d2d/wires/shm/shm_ring.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "smp/error.h"

namespace smp::d2d {
namespace shm_ring_test {

class ShmRingTest : public ::testing::Test {
 protected:
  static constexpr std::size_t kLines = 16;

  bool write(const std::string& text, std::uint32_t kind = 1) {
    auto* const place = writer_.begin(text.size());
    if (place == nullptr) return false;
    std::memcpy(place, text.data(), text.size());
    writer_.commit(kind);
    return true;
  }
  std::string read() {
    const auto record = reader_.front();
    if (!record) return "(none)";
    std::string text(reinterpret_cast<const char*>(record->payload.data()), record->payload.size());
    reader_.pop();
    return text;
  }

  struct alignas(64) Line {
    std::byte bytes[ShmRing::kLine] = {};
  };
  std::vector<Line> memory_{ShmRing::bytes_for(kLines) / ShmRing::kLine};
  ShmRingWriter writer_{memory_[0].bytes, kLines};
  ShmRingReader reader_{memory_[0].bytes, kLines};
};

TEST_F(ShmRingTest, RecordsComeInOrder) {
  EXPECT_EQ(read(), "(none)");
  EXPECT_TRUE(write("a"));
  EXPECT_TRUE(write(""));
  EXPECT_TRUE(write(std::string(200, 'c'), 7));
  EXPECT_EQ(read(), "a");
  EXPECT_EQ(read(), "");
  const auto record = reader_.front();
  ASSERT_TRUE(record);
  EXPECT_EQ(record->kind, 7u);
  EXPECT_EQ(read(), std::string(200, 'c'));
  EXPECT_EQ(read(), "(none)");
}

/// What says that the rest of the ring is left out.
TEST_F(ShmRingTest, TheBeginningIsNotSkipped) {
  const std::uint64_t skip = std::uint64_t{0xffff'ffff} << 32;
  std::memcpy(memory_[1].bytes, &skip, sizeof skip);
  EXPECT_THROW((void)reader_.front(), InternalError);
}

/// A reader who keeps up gets them in the same lines again and again.
TEST(ShmRing, BeginsAnewWhereAllIsRead) {
  constexpr std::size_t kMany = 1024, kShort = 100, kMost = 70 * ShmRing::kLine;
  struct alignas(64) Line {
    std::byte bytes[ShmRing::kLine] = {};
  };
  std::vector<Line> memory(ShmRing::bytes_for(kMany) / ShmRing::kLine);
  ShmRingWriter writer(memory[0].bytes, kMany);
  ShmRingReader reader(memory[0].bytes, kMany);
  const auto line_of = [&](const std::byte* place) {
    return static_cast<std::size_t>(place - memory[1].bytes) / ShmRing::kLine;
  };
  std::size_t farthest = 0;
  for (int i = 0; i < 10'000; ++i) {
    const std::size_t size = i % 7 == 0 ? kMost : kShort;
    auto* const place = writer.begin(size);
    ASSERT_NE(place, nullptr) << "after " << i;
    farthest = std::max(farthest, line_of(place));
    std::memset(place, 0xff, size);  // like headers
    writer.commit(3);
    const auto record = reader.front();
    ASSERT_TRUE(record);
    EXPECT_EQ(record->payload.size(), size);
    reader.pop();
    EXPECT_FALSE(reader.front());
  }
  EXPECT_LT(farthest, 128 + 70u);
  // Not beside one that waits to be read.
  std::size_t last = 0;
  for (int i = 0; i < 300; ++i) {
    auto* const place = writer.begin(kShort);
    ASSERT_NE(place, nullptr);
    writer.commit(1);
    if (i > 0) reader.front(), reader.pop();
    EXPECT_TRUE(i < 2 || line_of(place) > last) << i;
    last = line_of(place);
  }
  EXPECT_GT(last, 500u);
}

TEST_F(ShmRingTest, AFullRingTakesNoMore) {
  int written = 0;
  while (write(std::to_string(written))) ++written;
  EXPECT_EQ(written, static_cast<int>(kLines)) << "short records take a line";
  EXPECT_EQ(read(), "0");
  EXPECT_TRUE(write("again"));
  EXPECT_FALSE(write("no"));
  for (int i = 1; i < written; ++i) EXPECT_EQ(read(), std::to_string(i));
  EXPECT_EQ(read(), "again");
}

TEST_F(ShmRingTest, ARecordThatIsBegunAndNotCommittedIsNotThere) {
  EXPECT_NE(writer_.begin(10), nullptr);
  EXPECT_EQ(read(), "(none)");
  EXPECT_TRUE(write("b"));
  EXPECT_EQ(read(), "b");
}

TEST_F(ShmRingTest, AReaderSeesNoHeaderInTheBytesOfOldRecords) {
  // All bits set: every word of a payload looks like a header.
  const std::string ones(writer_.most_payload(), '\xff');
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(write(ones));
    ASSERT_EQ(read(), ones);
    ASSERT_EQ(read(), "(none)");
    if (i % 3 == 0) {
      ASSERT_TRUE(write("x"));
      ASSERT_EQ(read(), "x");
      ASSERT_EQ(read(), "(none)");
    }
  }
}

TEST_F(ShmRingTest, WhereARecordDoesNotFitBeforeTheEndNothingOldIsFound) {
  // Bytes that look like a header at the begin of each line, the first among them.
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(write(std::string(writer_.most_payload(), '\xff')));
    read();
  }
  for (int line = 0; line < 14; ++line) {
    ASSERT_TRUE(write("x"));
    read();
  }
  ASSERT_NE(writer_.begin(writer_.most_payload()), nullptr) << "two lines are left, it takes four";
  EXPECT_EQ(read(), "(none)") << "it is not committed";
  ASSERT_TRUE(write(std::string(writer_.most_payload(), 'y')));
  EXPECT_EQ(read(), std::string(writer_.most_payload(), 'y'));
}

TEST_F(ShmRingTest, TheLargestRecordFitsWhereverTheRingStands) {
  for (int start = 0; start < 40; ++start) {
    ASSERT_TRUE(write("x"));
    ASSERT_EQ(read(), "x");
    ASSERT_TRUE(write(std::string(writer_.most_payload(), 'y')));
    ASSERT_EQ(read().size(), writer_.most_payload());
  }
}

TEST_F(ShmRingTest, CarriesRecordsBetweenThreads) {
  constexpr int kRecords = 50'000;
  const auto text_of = [this](int i) {
    std::mt19937 random(static_cast<unsigned>(i));
    return std::string(random() % writer_.most_payload(), static_cast<char>(random()));
  };
  std::thread sender([&] {
    for (int i = 0; i < kRecords; ++i) {
      while (!write(text_of(i))) std::this_thread::yield();
    }
  });
  int wrong = 0;
  for (int i = 0; i < kRecords; ++i) {
    while (!reader_.front()) std::this_thread::yield();
    wrong += read() != text_of(i);
  }
  sender.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace shm_ring_test
}  // namespace smp::d2d
