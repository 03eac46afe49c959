// Of which tensors and containers a value is built, and where they lie in its packet.
#include "smp/detail/outline.h"

#include <gmock/gmock.h>
#include <torch/types.h>

#include <array>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "smp/codec.h"

namespace smp {
namespace outline_test {

using at::Tensor;
using testing::ElementsAre;

struct Inner {
  Tensor x_1;
  std::vector<int> list;
};

struct Outer {
  int number = 0;
  std::map<std::string, Tensor> named;
  std::optional<Inner> maybe;
  std::vector<Inner> several;
  std::pair<Tensor, std::tuple<bool, Tensor>> two;
};

template <class T>
detail::Outline outline_of(const T& value) {
  detail::Outline outline;
  Writer writer(outline);
  writer.put(value);
  return outline;
}

/// Kind, path, path by numbers, and the container's number.
template <class T>
std::vector<std::string> parts_of(const T& value) {
  std::vector<std::string> texts;
  const auto outline = outline_of(value);
  for (const auto& part : outline.parts()) {
    texts.push_back("TLAMO"[static_cast<int>(part.kind)] + std::string(" ") + part.path + " " +
                    part.numbered + " " + std::to_string(part.inside));
  }
  return texts;
}

TEST(Outline, NamesEveryTensorAndContainer) {
  const auto x = torch::ones({2});
  const Outer outer{
      1, {{"a", x}, {"none", {}}}, Inner{x, {1, 2}}, {{x, {}}, {x, {3}}}, {x, {true, x}}};
  EXPECT_THAT(parts_of(outer), ElementsAre("M named 1 -1", "T named.a 1.0 0", "T maybe.x_1 2.0 -1",
                                           "L maybe.list 2.1 -1", "L several 3 -1",
                                           "T several[].x_1 3[].0 4", "L several[].list 3[].1 4",
                                           "T several[].x_1 3[].0 4", "L several[].list 3[].1 4",
                                           "T two.first 4.0 -1", "T two.second.1 4.1.1 -1"));
}

TEST(Outline, NamesValuesWithoutMembersByNothing) {
  EXPECT_THAT(parts_of(torch::ones({2})), ElementsAre("T   -1"));
  EXPECT_THAT(parts_of(std::vector<std::vector<bool>>{{true}, {}}),
              ElementsAre("L   -1", "L [] [] 0", "L [] [] 0"));
  EXPECT_THAT(parts_of(std::array<Tensor, 2>{torch::ones({2}), {}}),
              ElementsAre("A   -1", "T 0 0 0"));
  EXPECT_THAT(parts_of(std::map<int, std::vector<int>>{{7, {1}}}),
              ElementsAre("M   -1", "L 7 0 0"));
  EXPECT_THAT(parts_of(std::pair(1, std::string("text"))), ElementsAre());
}

/// What is cut out of the packet between two places is one entry.
TEST(Outline, KnowsWhereEntriesBegin) {
  const std::vector<Inner> list{{torch::ones({1}), {1, 2}}, {{}, {}}, {torch::ones({2}), {3}}};
  detail::Outline outline;
  Writer writer(outline);
  writer.put(7);
  writer.put(list);
  const auto packet = std::move(writer).take();
  const auto& part = outline.parts().front();
  ASSERT_EQ(part.entries, 3u);
  ASSERT_EQ(part.entry_begins.size(), 3u);
  EXPECT_EQ(part.begin.bytes, sizeof(int));
  EXPECT_EQ(part.end.bytes, packet.bytes.size());
  EXPECT_EQ(part.end.tensors, 2u);
  const auto begin = part.entry_begins[2];
  Packet third{packet.bytes.substr(begin.bytes), {packet.tensors.at(begin.tensors)}};
  Reader reader(third);
  const auto entry = reader.get<Inner>();
  reader.finish();
  EXPECT_EQ(entry.list, std::vector<int>{3});
  EXPECT_EQ(entry.x_1.size(0), 2);
}

/// Its codec says what a microbatch gets: a half.
struct Halves {
  at::Tensor rows;
  std::vector<int> list;
};

}  // namespace outline_test

template <>
struct Codec<outline_test::Halves> {
  static void encode(Writer& out, const outline_test::Halves& all) {
    out.put(all.rows);
    out.put(all.list);
  }
  static outline_test::Halves decode(Reader& in) {
    auto rows = in.get<at::Tensor>();
    return {std::move(rows), in.get<std::vector<int>>()};
  }
  static outline_test::Halves slice(const outline_test::Halves& all, int microbatch,
                                    int microbatches) {
    return {all.rows.chunk(microbatches).at(static_cast<std::size_t>(microbatch)),
            {all.list.at(static_cast<std::size_t>(microbatch))}};
  }
  static std::int64_t rows(const outline_test::Halves& all) { return all.rows.size(0); }
};

namespace outline_test {

TEST(Outline, ShowsNothingOfWhatACodecSlices) {
  const Halves halves{torch::arange(4), {5, 6}};
  EXPECT_THAT(parts_of(std::pair(torch::ones({2}), halves)),
              ElementsAre("T first 0 -1", "O second 1 -1"));
  const auto outline = outline_of(std::pair(1, halves));
  const auto& part = outline.parts().at(0);
  EXPECT_EQ(part.rule.rows, 4);
  EXPECT_EQ(part.begin.bytes, sizeof(int));
  EXPECT_EQ(part.end.tensors, 1u);
  Writer writer;
  writer.put(halves);
  auto slices = part.rule.slices(std::move(writer).take(), 2);
  ASSERT_EQ(slices.size(), 2u);
  Reader reader(slices[1]);
  const auto second = reader.get<Halves>();
  reader.finish();
  EXPECT_TRUE(torch::equal(second.rows, torch::arange(2, 4)));
  EXPECT_EQ(second.list, std::vector<int>{6});
}

}  // namespace outline_test
}  // namespace smp
