// Who sent how much to whom.
#include "report/pictures/traffic.h"

#include <gmock/gmock.h>

#include <cstdint>
#include <limits>

#include "report/svg_reader.h"
#include "support/refusal.h"

namespace smp::report {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

const Traffic kTraffic{4,
                       {{0, 40, 2}, {80, 0, 0}, {4, 0, 0}},
                       {{0, 4096, 16}, {8192, 0, 0}, {4, 0, 0}},
                       {{"", "host_shm", "mpi"}, {"host_shm", "", "mpi"}, {"mpi", "mpi", ""}}};

TEST(Traffic, IsReadAsItWasWritten) {
  const auto read = traffic_from_json(traffic_to_json(kTraffic), "traffic.json");
  EXPECT_EQ(read.steps, 4);
  EXPECT_EQ(read.messages, kTraffic.messages);
  EXPECT_EQ(read.bytes, kTraffic.bytes);
  EXPECT_EQ(read.paths, kTraffic.paths);
}

/// 44,000 steps that send 100 MB each.
TEST(Traffic, OfALongRunIsRead) {
  auto traffic = kTraffic;
  traffic.steps = 44'000;
  traffic.bytes[0][1] = 4'400'000'000'000;
  EXPECT_EQ(traffic_from_json(traffic_to_json(traffic), "traffic.json").bytes, traffic.bytes);
  traffic.bytes[0][1] = std::numeric_limits<std::int64_t>::max();
  EXPECT_THAT(refusal([&] { traffic_from_json(traffic_to_json(traffic), "t.json"); }),
              HasSubstr("\"bytes\" holds"));
}

TEST(Traffic, IsDrawnPerStep) {
  const auto svg = draw_traffic(kTraffic);
  EXPECT_THAT(svg, HasSubstr("Between ranks: 3.0 KiB of tensors in 31.5 messages a step"));
  EXPECT_THAT(svg, HasSubstr("mean of 4 steps"));
  EXPECT_THAT(texts(svg, "bytes"), ElementsAre("1.0 KiB", "4 B", "2.0 KiB", "0", "1 B", "0"));
  EXPECT_THAT(texts(svg, "messages"), ElementsAre("10", "0.5", "20", "0", "1", "0"));
  EXPECT_THAT(svg, HasSubstr("rank 1 to rank 0: 2.0 KiB in 20 messages a step"));
  const auto cells = elements(svg, "rect", "cell");
  ASSERT_EQ(cells.size(), 6u);
  EXPECT_THAT(cells[3], HasSubstr("#f")) << "nothing: nearly white";
  EXPECT_NE(cells[2], cells[3]);
}

TEST(Traffic, TellsOverWhatItWent) {
  const auto mixed = draw_traffic(kTraffic);
  EXPECT_THAT(texts(mixed, "paths"), ElementsAre("2 over host_shm; 4 over mpi"));
  EXPECT_THAT(mixed, HasSubstr("2.0 KiB in 20 messages a step over host_shm"));
  auto traffic = kTraffic;
  traffic.paths = {{"", "mpi", "mpi"}, {"mpi", "", "mpi"}, {"mpi", "mpi", ""}};
  EXPECT_THAT(texts(draw_traffic(traffic), "paths"), ElementsAre("all over mpi"));
  traffic.paths.clear();
  EXPECT_THAT(texts(draw_traffic(traffic), "paths"), testing::IsEmpty()) << "of an older run";
}

TEST(Traffic, OfManyRanksFitsIntoThePicture) {
  for (const std::size_t ranks : {2, 24, 64}) {
    Traffic traffic{.steps = 1};
    traffic.messages.assign(ranks, std::vector<std::int64_t>(ranks, 1));
    traffic.bytes.assign(ranks, std::vector<std::int64_t>(ranks, 1 << 20));
    const auto svg = draw_traffic(traffic);
    const auto cells = elements(svg, "rect", "cell");
    EXPECT_EQ(cells.size(), ranks * (ranks - 1));
    for (const auto& cell : cells) {
      EXPECT_LE(number(cell, "x") + number(cell, "width"), number(svg, "width"));
      EXPECT_LE(number(cell, "y") + number(cell, "height"), number(svg, "height"));
    }
  }
}

TEST(Traffic, RefusesWhatIsNoSquare) {
  const auto read = [](const char* text) {
    return refusal([&] { traffic_from_json(text, "t.json"); });
  };
  EXPECT_THAT(read(R"({"format": "smp-run"})"), HasSubstr("\"format\" is not \"smp-traffic\""));
  EXPECT_THAT(
      read(R"({"format": "smp-traffic", "steps": 1, "messages": [[0]], "bytes": [[0, 1]]})"),
      HasSubstr("t.json: \"bytes\" has 1 rows, and one of 2 numbers"));
  EXPECT_THAT(read(R"({"format": "smp-traffic", "steps": 0, "messages": [[0]], "bytes": [[0]]})"),
              HasSubstr("0 steps"));
  EXPECT_THAT(read(R"({"format": "smp-traffic", "steps": 1, "messages": [[0]], "bytes": [[0]],
                       "paths": [["a", "b"]]})"),
              HasSubstr("\"paths\" are not those between 1 ranks"));
}

}  // namespace
}  // namespace smp::report
