// Folders that Python's datasets 5.2.0 saved (tests/data/make_saved_datasets.py), and damaged ones.
#include "data/datasets/saved_dataset.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <random>
#include <vector>

#include "base/log.h"
#include "data/documents/document_source.h"
#include "data/files/scratch_folder.h"
#include "smp/data/token_loader.h"
#include "support/damaged_files.h"
#include "support/refusal.h"

namespace smp::data {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::ElementsAre;
using testing::ElementsAreArray;
using testing::HasSubstr;

using namespace std::string_literals;

/// What make_saved_datasets.py put into most folders.
std::vector<std::string> all_texts() {
  return {"one",
          "",
          "drei und vier",
          "\u4e94 \U0001f3b2",
          "line\nline\r\n",
          " spaces ",
          "\0 is a byte"s,
          "eight",
          "nine",
          "ten",
          "eleven"};
}

std::string saved(const std::string& name) { return SMP_TEST_DATA "/saved/" + name; }

std::string read_one(const Documents& documents, std::int64_t number) {
  const auto found = DocumentSource::of(documents).find(number);
  std::string storage;
  return std::string(found.file.text(found.number, storage));
}

std::vector<std::string> read_all(const Documents& documents) {
  std::vector<std::string> texts;
  for (std::int64_t i = 0; i < documents.size(); ++i) texts.push_back(read_one(documents, i));
  return texts;
}

/// A copy of the folder "shards" to be damaged.
class SavedDatasetTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_arrow()) GTEST_SKIP() << "built without Arrow";
    std::filesystem::copy(saved("shards"), folder_.path("copy"));
  }
  std::string shard(int number) const {
    return folder_.path("copy/data-0000" + std::to_string(number) + "-of-00003.arrow");
  }
  std::vector<std::string> read() const { return read_all(open_documents({folder_.path("copy")})); }
  /// What is said if shard 1 holds `bytes`.
  std::string said_of(const std::string& bytes) const {
    base::write_file(shard(1), bytes);
    return refusal([&] { read(); });
  }

  ScratchFolder folder_;
};

TEST_F(SavedDatasetTest, GivesBackWhatWasSaved) {
  const auto documents = open_documents({saved("shards")});
  EXPECT_THAT(read_all(documents), ElementsAreArray(all_texts()));
  EXPECT_THAT(documents.files(), ElementsAre(saved("shards")));
  EXPECT_EQ(documents.place(4), saved("shards") + "/data-00001-of-00003.arrow: row 0");
  EXPECT_EQ(documents.place(10), saved("shards") + "/data-00002-of-00003.arrow: row 2");
  EXPECT_THAT(read_all(open_documents({saved("large")}, {.field = "body"})),
              ElementsAreArray(all_texts()));
  const auto both = open_documents({folder_.write("a.txt", "line\n"), saved("loaded")});
  EXPECT_THAT(read_all(both), ElementsAre("line", "one", "two", "three"));
}

TEST_F(SavedDatasetTest, IsTheSameTextForALoader) {
  TokenLoaderOptions options;
  options.tokenizer = bytes_tokenizer();
  options.context = 7;
  options.shuffle = false;
  options.rows = 2;
  TokenLoader loader(open_documents({saved("shards")}), options);
  std::vector<std::int64_t> expected;
  for (const auto& text : all_texts()) {
    for (const char byte : text) expected.push_back(static_cast<unsigned char>(byte));
    expected.push_back(256);
  }
  std::vector<std::int64_t> found;
  while (const auto batch = loader.next()) {
    const auto tokens = batch->tokens.flatten();
    for (std::int64_t i = 0; i < tokens.numel(); ++i)
      found.push_back(tokens[i].item<std::int64_t>());
  }
  ASSERT_GE(found.size(), expected.size());
  found.resize(expected.size());  // the last step is filled up
  EXPECT_EQ(found, expected);
}

TEST_F(SavedDatasetTest, TakesOnlyWhatStateSays) {
  // filter() has left row numbers in the folder; a copy of a shard is no data either.
  std::filesystem::copy(shard(0), folder_.path("copy/data-00003-of-00003.arrow"));
  EXPECT_THAT(read(), ElementsAreArray(all_texts()));
  EXPECT_THAT(refusal([&] { open_documents({shard(0)}); }), HasSubstr("name its folder"));
  EXPECT_THAT(refusal([&] { open_documents({shard(0)}, {.format = Format::kArrow}); }),
              HasSubstr("has no state.json"));
  EXPECT_THAT(refusal([&] { open_documents({saved("splits")}); }),
              AllOf(HasSubstr("several splits"), HasSubstr("splits/train, "), HasSubstr("/test")));
  EXPECT_THAT(read_all(open_documents({saved("splits/train")})),
              ElementsAre("one", "drei und vier"));
  EXPECT_THAT(refusal([&] { open_documents({saved("empty")}); }), HasSubstr("holds no documents"));
  EXPECT_THAT(refusal([&] { open_documents({folder_.path("")}); }), HasSubstr("state.json"));
  const auto state = base::read_file(folder_.path("copy/state.json"));
  base::write_file(folder_.path("copy/state.json"), state.substr(0, 60));
  EXPECT_THAT(refusal([&] { read(); }), HasSubstr("copy/state.json"));
}

TEST_F(SavedDatasetTest, SaysThatASplitHadOtherRows) {
  {
    const base::LogCapture log;
    EXPECT_THAT(read_all(open_documents({saved("selected")})), ElementsAre("one", "three"));
    EXPECT_THAT(log.text(), AllOf(HasSubstr("2 rows"), HasSubstr("3 of the split train")));
  }
  const base::LogCapture log;
  open_documents({saved("loaded")});
  open_documents({saved("shards")});
  EXPECT_EQ(log.text(), "");
}

TEST_F(SavedDatasetTest, NamesColumnsThatAreNoText) {
  EXPECT_THAT(refusal([] { open_documents({saved("shards")}, {.field = "txt"}); }),
              AllOf(HasSubstr("data-00000-of-00003.arrow: has no column \"txt\""),
                    HasSubstr("id, more, text")));
  EXPECT_THAT(refusal([] { open_documents({saved("shards")}, {.field = "id"}); }),
              HasSubstr("is of type int64"));
}

TEST_F(SavedDatasetTest, NamesTheRowThatIsNull) {
  const auto documents = open_documents({saved("null")});
  EXPECT_EQ(read_one(documents, 2), "three");
  EXPECT_THAT(
      refusal([&] { read_one(documents, 1); }),
      AllOf(HasSubstr("data-00000-of-00001.arrow: row 1 is null"), HasSubstr("skip_damaged")));
  TokenLoaderOptions options;
  options.tokenizer = bytes_tokenizer();
  options.context = 4;
  options.skip_damaged = true;
  TokenLoader loader(documents, options);
  while (loader.next()) {
  }
  EXPECT_EQ(loader.counters().skipped, 1);
}

TEST_F(SavedDatasetTest, NamesTheShardThatIsMissing) {
  std::filesystem::remove(shard(1));
  EXPECT_THAT(refusal([&] { read(); }),
              AllOf(HasSubstr(shard(1) + ": is missing"), HasSubstr("names 3 files")));
}

TEST_F(SavedDatasetTest, NoticesWhereverAShardIsCutShort) {
  const auto good = base::read_file(shard(1));
  for (std::size_t size = 0; size < good.size(); size += 4) {
    EXPECT_THAT(said_of(good.substr(0, size)),
                AllOf(HasSubstr(shard(1) + ": "), HasSubstr("byte ")))
        << size;
  }
  // Between two batches Arrow itself sees nothing.
  EXPECT_THAT(said_of(good.substr(0, good.size() - 8)), HasSubstr("before row 4: the file is cut"));
  EXPECT_THAT(said_of(good + "more"), HasSubstr("the file has 12 more bytes"));
  EXPECT_THAT(said_of(good + good), HasSubstr("more bytes"));
  EXPECT_EQ(said_of(good), "accepted");
}

TEST_F(SavedDatasetTest, NamesTheByteThatIsNoUtf8) {
  auto bytes = base::read_file(shard(1));
  const auto at = bytes.find("line\nline");
  ASSERT_NE(at, std::string::npos);
  bytes[at + 1] = '\xff';
  EXPECT_THAT(said_of(bytes), AllOf(HasSubstr(shard(1) + ": row 0: "),
                                    HasSubstr("byte " + std::to_string(at + 1) + " of the file")));
}

TEST_F(SavedDatasetTest, SurvivesDamage) {
  const auto good = base::read_file(shard(1));
  std::mt19937 random(1);
  int refused = 0;
  const int count = damaged_files(600);
  for (int i = 0; i < count; ++i) {
    const auto said = said_of(damaged(good, random, 1 + i % 3));
    EXPECT_THAT(said, AnyOf("accepted", HasSubstr(shard(1))));
    refused += said != "accepted";
  }
  EXPECT_GT(refused, count / 3);  // other texts are accepted: there are no checksums
}

}  // namespace
}  // namespace smp::data
