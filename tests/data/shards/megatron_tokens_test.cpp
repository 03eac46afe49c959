// Pairs of files that Megatron's own builder wrote (tests/data/make_megatron_tokens.py), and
// damaged ones.
#include "data/shards/megatron_tokens.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <random>
#include <vector>

#include "config/json.h"
#include "data/files/scratch_folder.h"
#include "smp/data/documents.h"
#include "smp/data/token_loader.h"
#include "support/damaged_files.h"
#include "support/refusal.h"

namespace smp::data {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;
using Corpus = std::vector<std::vector<std::int32_t>>;

std::string published(const std::string& name) { return SMP_TEST_DATA "/megatron/" + name; }

Corpus documents_of(const std::string& name) {
  const auto about = base::read_json(published(name + ".json"));
  Corpus corpus;
  for (const auto& document : about.at("documents")) {
    corpus.push_back(document.get<std::vector<std::int32_t>>());
  }
  return corpus;
}

Corpus read_all(const TokenSource& source) {
  Corpus corpus;
  for (std::int64_t number = 0; number < source.info().documents; ++number) {
    const auto [begin, end] = source.document(number);
    const auto tokens = source.tokens(begin, end);
    corpus.emplace_back(static_cast<std::size_t>(tokens.size));
    tokens.copy_to(corpus.back().data());
  }
  return corpus;
}

/// A copy of one of the pairs, to be damaged.
class MegatronTokensTest : public testing::Test {
 protected:
  void copy(const std::string& name) {
    index_ = base::read_file(published(name + ".idx"));
    tokens_ = base::read_file(published(name + ".bin"));
  }
  std::string path() const { return folder_.path("copy.idx"); }
  /// What is said if the files hold these bytes.
  std::string said_of(const std::string& index, const std::string& tokens) const {
    base::write_file(path(), index);
    base::write_file(folder_.path("copy.bin"), tokens);
    return refusal([&] { read_all(MegatronTokens(path(), {65000, 0})); });
  }

  ScratchFolder folder_;
  std::string index_;
  std::string tokens_;
};

TEST_F(MegatronTokensTest, GivesBackWhatWasWritten) {
  for (const std::string path : {"small", "small.bin", "small.idx"}) {
    const MegatronTokens small(published(path), {65000, 0});
    EXPECT_EQ(read_all(small), documents_of("small"));  // ends are taken off
    EXPECT_EQ(small.info().token_bytes, 2);
    EXPECT_EQ(small.path(), published("small.bin"));
  }
  const MegatronTokens wide(published("wide"), {100000, 0});
  EXPECT_EQ(read_all(wide), documents_of("wide"));
  EXPECT_EQ(wide.info().token_bytes, 4);
}

TEST_F(MegatronTokensTest, IsReadByALoaderAndPackedIntoAShard) {
  const DocumentOptions options{.vocab_size = 65000, .end_of_document = 0};
  const auto documents = open_documents({published("small.idx")}, options);
  EXPECT_EQ(documents.place(3), published("small.bin") + ": document 3");
  const auto packed = folder_.path("packed.tokens");
  const auto result = pack_tokens(documents, nullptr, packed);
  EXPECT_EQ(result.shard.documents, 12);
  TokenLoaderOptions loading;
  loading.context = 5;
  loading.rows = 2;
  TokenLoader direct(documents, loading);
  TokenLoader of_shard(open_documents({packed}), loading);
  int batches = 0;
  while (const auto batch = direct.next()) {
    const auto other = of_shard.next();
    ASSERT_TRUE(other);
    EXPECT_TRUE(torch::equal(batch->tokens, other->tokens));
    EXPECT_TRUE(torch::equal(batch->targets, other->targets));
    ++batches;
  }
  EXPECT_FALSE(of_shard.next());
  EXPECT_GE(batches, 6);
}

TEST_F(MegatronTokensTest, WantsTheVocabulary) {
  const auto refused = [&](const MegatronVocabulary& vocabulary) {
    return refusal([&] { read_all(MegatronTokens(published("small"), vocabulary)); });
  };
  EXPECT_THAT(refused({}), HasSubstr("set DocumentOptions::vocab_size, which is 0"));
  EXPECT_THAT(refused({65000}), HasSubstr("set DocumentOptions::end_of_document, which is -1"));
  EXPECT_THAT(refused({10, 0}),
              AllOf(HasSubstr("small.bin: bytes "), HasSubstr("vocab_size is 10")));
}

TEST_F(MegatronTokensTest, NamesWhatIsDamaged) {
  copy("small");
  EXPECT_EQ(said_of(index_, tokens_), "accepted");
  const auto with = [&](std::size_t at, char byte) {
    auto index = index_;
    index[at] = byte;
    return said_of(index, tokens_);
  };
  EXPECT_THAT(with(2, 'x'), HasSubstr("copy.idx: bytes 0 to 33 are not the head"));
  EXPECT_THAT(with(9, 2), HasSubstr("version 2"));
  EXPECT_THAT(with(17, 7), HasSubstr("byte 17: tokens of type 7"));
  EXPECT_THAT(with(18, 99), HasSubstr("copy.idx: has 282 bytes, but"));
  EXPECT_THAT(with(30, 99), HasSubstr("bytes 18 to 33"));
  EXPECT_THAT(with(34 + 4 * 2, 7), HasSubstr("sequence 2 of document 2"));
  EXPECT_THAT(with(34 + 12 * 12 + 8 * 2, 11), HasSubstr("document 2 would be sequences 11 to 3"));
  for (std::size_t size = 0; size < index_.size(); size += 3) {
    EXPECT_THAT(said_of(index_.substr(0, size), tokens_), HasSubstr("copy.idx")) << size;
  }
  for (std::size_t size = 0; size < tokens_.size(); ++size) {
    EXPECT_THAT(said_of(index_, tokens_.substr(0, size)), HasSubstr("copy.bin: has ")) << size;
  }
  std::filesystem::remove(folder_.path("copy.bin"));
  EXPECT_THAT(refusal([&] { MegatronTokens(path(), {65000, 0}); }), HasSubstr("copy.bin"));
}

TEST_F(MegatronTokensTest, RefusesNegativeTokens) {
  copy("wide");
  tokens_[3] = '\xff';
  base::write_file(path(), index_);
  base::write_file(folder_.path("copy.bin"), tokens_);
  EXPECT_THAT(refusal([&] {
                read_all(MegatronTokens(path(), {100000, 0}));
              }),
              HasSubstr("copy.bin: bytes 0 to "));
}

TEST_F(MegatronTokensTest, SurvivesDamage) {
  for (const std::string name : {"small", "wide"}) {
    copy(name);
    std::mt19937 random(1);
    for (int i = 0; i < damaged_files(300); ++i) {
      EXPECT_THAT(said_of(damaged(index_, random, 1 + i % 3), tokens_),
                  AnyOf("accepted", HasSubstr("copy.idx"), HasSubstr("copy.bin")));
    }
  }
}

}  // namespace
}  // namespace smp::data
