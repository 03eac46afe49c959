// Shards that are written and read, and damaged ones.
#include "data/shards/token_shard.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <optional>
#include <vector>

#include "data/files/scratch_folder.h"
#include "support/damaged_files.h"
#include "support/dice.h"
#include "support/full_disk.h"
#include "support/refusal.h"

namespace smp::data {
namespace {

using testing::HasSubstr;
using Corpus = std::vector<std::vector<std::int32_t>>;

Corpus random_corpus(Dice& dice, std::int64_t vocab_size, int documents, int longest) {
  Corpus corpus(static_cast<std::size_t>(documents));
  for (auto& document : corpus) {
    document.resize(static_cast<std::size_t>(dice.below(longest + 1)));
    for (auto& token : document) {
      token = static_cast<std::int32_t>(dice.next() % static_cast<std::uint64_t>(vocab_size));
    }
  }
  return corpus;
}

TokenShardInfo write_shard(const std::string& path, const Corpus& corpus, std::int64_t vocab_size) {
  TokenShardWriter writer(path, vocab_size, static_cast<std::int32_t>(vocab_size - 1));
  for (const auto& document : corpus) writer.append(document);
  return writer.finish();
}

Corpus read_shard(const std::string& path) {
  const TokenShard shard(path);
  Corpus corpus;
  for (std::int64_t number = 0; number < shard.info().documents; ++number) {
    const auto [begin, end] = shard.document(number);
    const auto tokens = shard.tokens(begin, end);
    corpus.emplace_back(static_cast<std::size_t>(tokens.size));
    tokens.copy_to(corpus.back().data());
  }
  return corpus;
}

TEST(TokenShard, GivesBackWhatWasWritten) {
  const ScratchFolder folder;
  const auto path = folder.path("some.tokens");
  Dice dice(1);
  // Of 2 and of 4 bytes; some of several blocks of 64 KiB, some of none.
  for (const std::int64_t vocab_size : {1, 257, 65536, 65537, 2147483647}) {
    for (const int documents : {0, 1, 3, 500}) {
      const auto corpus = random_corpus(dice, vocab_size, documents, 2000);
      const auto info = write_shard(path, corpus, vocab_size);
      EXPECT_EQ(info.token_bytes, vocab_size <= 65536 ? 2 : 4);
      EXPECT_EQ(info.documents, documents);
      EXPECT_EQ(read_shard(path), corpus);
      check_token_shard(path);
      EXPECT_EQ(token_shard_info(path).tokens, info.tokens);
      EXPECT_EQ(token_shard_info(path).vocab_size, vocab_size);
      EXPECT_EQ(token_shard_info(path).end_of_document, vocab_size - 1);
    }
  }
}

TEST(TokenShard, TellsWhatIsDamaged) {
  const ScratchFolder folder;
  const auto path = folder.path("some.tokens");
  write_shard(path, {{1, 2, 3}, {4}}, 100);
  const auto good = base::read_file(path);
  const auto said_of = [&](std::string bytes) {
    base::write_file(path, bytes);
    return refusal([&] { read_shard(path); });
  };
  const auto flipped = [&](std::size_t at) {
    auto bytes = good;
    bytes[at] ^= 1;
    return bytes;
  };
  EXPECT_THAT(said_of("{\"text\": \"no shard\"}\n"), HasSubstr("is no token shard"));
  EXPECT_THAT(said_of(""), HasSubstr("is no token shard"));
  EXPECT_THAT(said_of(good.substr(0, 50)), HasSubstr("it has 50 bytes, its header 128"));
  EXPECT_THAT(said_of(flipped(8)), HasSubstr("version 0"));
  EXPECT_THAT(said_of(flipped(40)), HasSubstr("header of the token shard is damaged"));
  EXPECT_THAT(said_of(good.substr(0, good.size() - 1)), HasSubstr("cut short: it has"));
  EXPECT_THAT(said_of(good + "x"), HasSubstr("longer than it should be"));
  EXPECT_THAT(said_of(flipped(130)), HasSubstr("some.tokens: bytes 128 to 159"));
  EXPECT_THAT(said_of(flipped(good.size() - 1)), HasSubstr("(bytes 160 to 167)"));
  EXPECT_EQ(said_of(good), "accepted");
}

// Whoever writes a shard may err, with checksums that are right.
TEST(TokenShard, RefusesTokensBeyondTheVocabulary) {
  const ScratchFolder folder;
  const auto path = folder.path("some.tokens");
  write_shard(path, {{1, 2, 99}}, 100);
  auto bytes = base::read_file(path);
  auto info = token_shard_info(path);
  info.vocab_size = 99;
  info.end_of_document = 0;
  bytes.replace(0, kHeaderBytes, encode_header(info));
  base::write_file(path, bytes);
  EXPECT_THAT(refusal([&] { read_shard(path); }), HasSubstr("token 99, but its vocabulary has 99"));
}

// A flipped byte or a cut is an error with the file's name, or harms no token that is read.
TEST(TokenShard, DamagedFilesAreNeverReadWrong) {
  const ScratchFolder folder;
  const auto path = folder.path("some.tokens");
  Dice dice(3);
  int refused = 0;
  const int files = damaged_files(3000);
  std::optional<Corpus> corpus;
  std::string good;
  for (int i = 0; i < files; ++i) {
    if (i % 300 == 0) {
      const std::int64_t vocab_size = dice.one_of({300, 70000});
      corpus = random_corpus(dice, vocab_size, dice.between(1, 40), dice.one_of({3, 300, 9000}));
      write_shard(path, *corpus, vocab_size);
      good = base::read_file(path);
    }
    auto bytes = good;
    const auto somewhere = [&] {
      const auto end = dice.chance(0.5) ? std::min<std::size_t>(bytes.size(), 140) : bytes.size();
      return static_cast<std::size_t>(dice.next() % end);
    };
    switch (dice.below(4)) {
      case 0:
        bytes.resize(somewhere());
        break;
      case 1:
        bytes.append(static_cast<std::size_t>(dice.between(1, 100)), '\0');
        break;
      default:
        for (int flips = dice.between(1, 3); flips > 0; --flips) {
          bytes[somewhere()] ^= static_cast<char>(1 << dice.below(8));
        }
    }
    std::filesystem::remove(path);  // the mapped one must not change
    base::write_file(path, bytes);
    Corpus read;
    const auto said = refusal([&] { read = read_shard(path); });
    if (said == "accepted") {
      ASSERT_EQ(read, *corpus);
    } else {
      ASSERT_THAT(said, testing::StartsWith(path + ": "));
      ++refused;
    }
  }
  EXPECT_GT(refused, files * 9 / 10);
}

/// Half of a document would be the beginning of the next one.
TEST(TokenShardWriter, WritesNothingMoreAfterADocumentThatDidNotFit) {
  const ScratchFolder folder;
  const auto path = folder.path("some.tokens");
  TokenShardWriter writer(path, 300, 2);
  writer.append(std::vector<std::int32_t>(32767, 1));
  {
    const support::FullDisk full(1000);
    EXPECT_THAT(refusal<ResourceError>([&] { writer.append(std::vector<std::int32_t>(1, 9)); }),
                HasSubstr("cannot write " + path));
  }
  EXPECT_THAT(refusal<ResourceError>([&] { writer.append(std::vector<std::int32_t>(2, 8)); }),
              HasSubstr("write the shard anew"));
  EXPECT_THAT(refusal<ResourceError>([&] { writer.finish(); }), HasSubstr("could not be written"));
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(TokenShardWriter, RefusesTokensThatAreNone) {
  const ScratchFolder folder;
  const auto path = folder.path("some.tokens");
  EXPECT_THAT(refusal([&] { TokenShardWriter(path, 0, 0); }), HasSubstr("vocabulary of 0"));
  EXPECT_THAT(refusal([&] { TokenShardWriter(path, 10, 10); }), HasSubstr("token 10, but"));
  {
    TokenShardWriter writer(path, 10, 9);
    writer.append(std::vector<std::int32_t>{1, 2});
    EXPECT_THAT(refusal([&] {
                  writer.append(std::vector<std::int32_t>{3, 10});
                }),
                HasSubstr("document 1 has token 10, but the vocabulary has 10"));
    EXPECT_THAT(refusal([&] { writer.append(std::vector<std::int32_t>{-1}); }),
                HasSubstr("token -1"));
    EXPECT_FALSE(base::file_exists(path));  // it is not finished
    writer.append(std::vector<std::int32_t>{4});
    writer.finish();
    EXPECT_THAT(refusal([&] { writer.finish(); }), HasSubstr("is finished"));
  }
  EXPECT_EQ(read_shard(path), (Corpus{{1, 2}, {4}}));
  {
    TokenShardWriter given_up(path, 10, 9);
    given_up.append(std::vector<std::int32_t>{5});
  }
  EXPECT_EQ(read_shard(path), (Corpus{{1, 2}, {4}}));
}

}  // namespace
}  // namespace smp::data
