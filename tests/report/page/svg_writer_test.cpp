// Pieces that pictures are made of.
#include "report/page/svg_writer.h"

#include <gmock/gmock.h>

#include <cmath>
#include <limits>
#include <random>
#include <utility>
#include <vector>

namespace smp::report {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

TEST(SvgWriter, WritesShapesWithTheirAttributes) {
  SvgWriter svg(100, 50);
  svg.rectangle({1, 2}, 3.14159, 4, {.fill = "red", .group = "lane"}, "a < b");
  svg.line({0, 0}, {5, 5}, {.fill = "", .stroke = "blue", .dash = "4 3"});
  svg.path({{0, 0}, {1, 2.5}}, {.stroke = "green", .stroke_width = 2});
  svg.text({7, 8}, "R&D", {.anchor = "end", .bold = true});
  const std::string picture = std::move(svg).finish();
  EXPECT_THAT(picture, StartsWith("<svg xmlns="));
  EXPECT_THAT(picture, HasSubstr("width=\"3.14\" height=\"4\" fill=\"red\" class=\"lane\"><title>a "
                                 "&lt; b</title></rect>"));
  EXPECT_THAT(picture, HasSubstr("stroke=\"blue\" stroke-dasharray=\"4 3\"/>"));
  EXPECT_THAT(picture, HasSubstr("points=\"0,0 1,2.5\""));
  EXPECT_THAT(picture, HasSubstr("text-anchor=\"end\" font-weight=\"bold\">R&amp;D</text>"));
  EXPECT_THAT(picture, testing::EndsWith("</svg>\n"));
}

TEST(SvgWriter, WritesTheHeadlineLargeAtTheTop) {
  SvgWriter svg(100, 50);
  svg.headline("loss & time");
  EXPECT_THAT(std::move(svg).finish(),
              HasSubstr("<text x=\"20\" y=\"26\" font-size=\"16\" fill=\"#111111\" "
                        "font-weight=\"bold\">loss &amp; time</text>"));
}

TEST(SvgWriter, ReplacesWhatXmlCannotHold) {
  EXPECT_EQ(escaped("a\x01\x1b\tb\n"), "a\xEF\xBF\xBD\xEF\xBF\xBD\tb\n");
  EXPECT_EQ(escaped("größe 层"), "größe 层");
  EXPECT_EQ(escaped("\xff<"), "\xEF\xBF\xBD&lt;");
  EXPECT_EQ(escaped("\xEF\xBF\xBF"), "\xEF\xBF\xBD");
}

TEST(SvgWriter, ShortensNumbers) {
  EXPECT_EQ(short_number(2), "2");
  EXPECT_EQ(short_number(2.5), "2.5");
  EXPECT_EQ(short_number(100), "100");
  EXPECT_EQ(short_number(-0.001), "0");
  EXPECT_EQ(short_number(-1e35), "-1e+35");
}

TEST(SvgWriter, MixesColors) {
  EXPECT_EQ(color(0, 1, 0.5), "#ff0000");
  EXPECT_EQ(color(120, 1, 0.5), "#00ff00");
  EXPECT_EQ(color(240, 0, 0.5), "#808080");
}

TEST(Ticks, AreRoundAndInsideTheRange) {
  EXPECT_THAT(round_ticks(0, 10, 5), ElementsAre(0, 2, 4, 6, 8, 10));
  EXPECT_THAT(round_ticks(0.7, 3.2, 5), ElementsAre(1, 1.5, 2, 2.5, 3));
  EXPECT_THAT(round_ticks(-1, 1, 2), ElementsAre(-1, 0, 1));
  EXPECT_THAT(round_ticks(5, 5, 3), ElementsAre(5));
}

/// Also where a double plus one is the same double, or a range is endless.
TEST(Ticks, AreFewWhateverTheRange) {
  constexpr double kHuge = std::numeric_limits<double>::max();
  std::mt19937 random(3);
  std::uniform_real_distribution<double> exponent(-300, 300), digits(-1, 1);
  std::vector<std::pair<double, double>> ranges{
      {5e9 - 1e-6, 5e9 + 1e-6}, {1e17, 1e17 + 16}, {-kHuge, kHuge}, {0, 5e-324}, {4e10, 4e10}};
  for (int i = 0; i < 1000; ++i) {
    const double low = digits(random) * std::pow(10, exponent(random));
    ranges.emplace_back(low, std::nextafter(low, kHuge));
    ranges.emplace_back(low, low + std::pow(10, exponent(random)));
  }
  for (const auto& [low, high] : ranges) {
    const auto ticks = round_ticks(low, high, 6);
    EXPECT_LE(ticks.size(), 24u) << low << ", " << high;
    for (const double tick : ticks) EXPECT_TRUE(std::isfinite(tick)) << low << ", " << high;
  }
}

TEST(Ticks, HaveAsManyDecimalsAsTheyNeed) {
  EXPECT_EQ(tick_label(20, 10), "20");
  EXPECT_EQ(tick_label(1.5, 0.5), "1.5");
  EXPECT_EQ(tick_label(0.25, 0.05), "0.25");
  EXPECT_EQ(tick_label(1.5e35, 1e34), "1.5e+35");
  EXPECT_EQ(tick_label(2e-20, 1e-20), "2e-20");
}

}  // namespace
}  // namespace smp::report
