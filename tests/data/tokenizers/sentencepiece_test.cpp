// SentencePiece behind its shared object, in a program that has another protobuf.
#include "smp/data/sentencepiece.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "config/json.h"
#include "data/files/scratch_folder.h"
#include "data/tokenizers/sentencepiece_library.h"
#include "support/dice.h"
#include "support/refusal.h"

namespace smp::data {
namespace {

using testing::HasSubstr;

class SentencePiece : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_sentencepiece()) GTEST_SKIP() << "built without SentencePiece";
    std::string text;
    for (int i = 0; i < 400; ++i) {
      text += base::concat("The ", i % 7, " quick foxes jump over ", i, " lazy dogs, again.\n");
    }
    train_sentencepiece(
        {.files = {folder_.write("text", text)}, .model = model_, .vocab_size = 320});
  }

  ScratchFolder folder_;
  std::string model_ = folder_.path("tokenizer.model");
};

TEST_F(SentencePiece, EveryTextComesBack) {
  const auto tokenizer = sentencepiece_tokenizer(model_);
  EXPECT_EQ(tokenizer->vocab_size(), 320);
  EXPECT_EQ(tokenizer->end_of_document(), 2);
  using namespace std::string_view_literals;
  for (const auto text :
       {"The quick fox"sv, " leading"sv, "trailing "sv, "  two  spaces  "sv, ""sv, " "sv,
        "a\nb\tc\r\n"sv, "\0nul"sv, "\xc3\xa4\xe5\xb1\x82\xf0\x9f\x98\x80"sv, "<s></s><unk>"sv,
        "1234567890"sv,
        "\xef\xbb\xbf"
        "bom"sv,
        "e\xcc\x81 \xef\xac\x81 \xe2\x85\xa7 \xc2\xa0"sv}) {
    std::vector<std::int32_t> tokens;
    tokenizer->encode(text, tokens);
    EXPECT_EQ(tokenizer->decode(tokens), text);
    EXPECT_EQ(std::count(tokens.begin(), tokens.end(), tokenizer->end_of_document()), 0) << text;
    EXPECT_EQ(std::count(tokens.begin(), tokens.end(), 0), 0) << text;  // nothing is unknown
  }
  std::vector<std::int32_t> tokens;
  tokenizer->encode("The quick foxes jump over", tokens);
  EXPECT_LT(tokens.size(), 15);  // it has learned something
}

TEST_F(SentencePiece, ThreadsShareAModel) {
  const auto tokenizer = sentencepiece_tokenizer(model_);
  std::vector<std::int32_t> expected;
  tokenizer->encode("The 3 quick foxes jump over 17 lazy dogs", expected);
  std::vector<std::vector<std::int32_t>> found(4);
  std::vector<std::thread> threads;
  for (auto& tokens : found) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) {
        tokens.clear();
        tokenizer->encode("The 3 quick foxes jump over 17 lazy dogs", tokens);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  for (const auto& tokens : found) EXPECT_EQ(tokens, expected);
}

/// A thread remembers words of the model that it used last, and of no other.
TEST_F(SentencePiece, AThreadUsesTwoModelsInTurns) {
  const auto other = folder_.path("other.model");
  train_sentencepiece({.files = {folder_.path("text")}, .model = other, .vocab_size = 300});
  const auto first = sentencepiece_tokenizer(model_), second = sentencepiece_tokenizer(other);
  const auto tokens_of = [](const Tokenizer& tokenizer) {
    std::vector<std::int32_t> tokens;
    tokenizer.encode("The 3 quick foxes jump over 17 lazy dogs", tokens);
    return tokens;
  };
  const auto alone = [&](const Tokenizer& tokenizer) {
    std::vector<std::int32_t> tokens;
    std::thread([&] { tokens = tokens_of(tokenizer); }).join();
    return tokens;
  };
  const auto of_first = alone(*first), of_second = alone(*second);
  ASSERT_NE(of_first, of_second);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(tokens_of(*first), of_first);
    EXPECT_EQ(tokens_of(*second), of_second);
  }
}

TEST_F(SentencePiece, TheSameTextTrainsTheSameModel) {
  const auto again = folder_.path("again.model");
  train_sentencepiece({.files = {folder_.path("text")}, .model = again, .vocab_size = 320});
  EXPECT_EQ(base::read_file(again), base::read_file(model_));
}

/// SentencePiece would leave out a line of more than a million bytes.
TEST_F(SentencePiece, LearnsFromLongLines) {
  std::string one_line, lines;
  for (int i = 0; i < 30'000; ++i) {
    const std::string sentence = " the quick brown fox jumps over " + std::to_string(i % 1000);
    one_line += sentence;
    lines += sentence + "\n";
  }
  ASSERT_GT(one_line.size(), 1'000'000u);
  std::vector<std::string> models;
  for (const auto& text : {one_line, lines}) {
    base::write_file(folder_.path("long"), text);
    train_sentencepiece(
        {.files = {folder_.path("long")}, .model = folder_.path("long.model"), .vocab_size = 300});
    models.push_back(base::read_file(folder_.path("long.model")));
  }
  EXPECT_EQ(models[0], models[1]);
}

// Words are encoded one by one and remembered; the tokens are those of the whole text.
TEST_F(SentencePiece, GivesTheTokensOfTheWholeText) {
  const auto tokenizer = sentencepiece_tokenizer(model_);
  const auto model = open_sentencepiece(model_);
  Dice dice(6);
  for (int round = 0; round < 2000; ++round) {
    std::string text;
    for (int parts = dice.below(20); parts > 0; --parts) {
      text +=
          dice.one_of<const char*>({" ", " ", "  ", "the", "The", "quick", "qu", "fox", "es", "x",
                                    "7", "\n", "\xc3\xa4", "\xe2\x96\x81", "jump over", "<s>"});
    }
    std::vector<std::int32_t> whole = {1};
    auto words = whole;
    encode_text(model, text, whole);
    tokenizer->encode(text, words);
    ASSERT_EQ(words, whole) << text;
  }
}

TEST_F(SentencePiece, WritesWhatTransformersReads) {
  write_transformers_tokenizer(model_);
  const auto json = base::read_json(folder_.path("tokenizer.json"));
  const auto& bpe = json.at("model");
  EXPECT_EQ(bpe.at("vocab").size(), 320);
  EXPECT_EQ(bpe.at("vocab").at("</s>"), 2);
  EXPECT_EQ(bpe.at("vocab").at("<0x0A>"), 13);
  // Joined by that list alone, the first pair first, a word becomes what SentencePiece makes of it.
  const auto merges = bpe.at("merges").get<std::vector<std::vector<std::string>>>();
  std::vector<std::string> parts = {"\xe2\x96\x81", "q", "u", "i", "c", "k"};
  for (const auto& merge : merges) {
    for (std::size_t i = 0; i + 1 < parts.size(); ++i) {
      if (parts[i] != merge[0] || parts[i + 1] != merge[1]) continue;
      parts[i] += parts[i + 1];
      parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(i) + 1);
    }
  }
  std::vector<std::int32_t> expected;
  sentencepiece_tokenizer(model_)->encode(" quick", expected);
  std::vector<std::int32_t> found;
  for (const auto& part : parts) found.push_back(bpe.at("vocab").at(part).get<std::int32_t>());
  EXPECT_EQ(found, expected);
  EXPECT_TRUE(base::read_json(folder_.path("tokenizer_config.json")).at("split_special_tokens"));
}

/// Texts that tokenizers are known to change or to take apart in other ways.
std::vector<std::string> awkward_texts() {
  using namespace std::string_literals;
  std::vector<std::string> texts = {
      "",
      " ",
      "  ",
      "   two   spaces   ",
      "\n",
      "\n\n a\tb\r\nc ",
      "\0nul"s,
      "a\x7f\x01",
      "<s>",
      "</s>",
      "<unk>",
      "<s>The</s> <unk>",
      "<0x41>",
      "[INST] <<SYS>>",
      "1234567890",
      "007 3.14 -1e-5",
      "don't I'm he'll",
      "Hello,world!Really?(yes)",
      "http://a.b/c?d=e&f",
      "CamelCaseAnd_snake",
      "\xc3\xa4\xe5\xb1\x82",  // letters of two and three bytes
      "\xf0\x9f\x98\x80 \xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x9a\x80",
      "e\xcc\x81 and \xc3\xa9",                  // one letter in two forms
      "\xef\xac\x81 \xe2\x85\xa7 \xef\xbc\xa1",  // what NFKC would change
      "\xef\xbb\xbf"
      "bom",
      "a\xc2\xa0"
      "b\xe3\x80\x80"
      "c\xe2\x80\x83"
      "d",  // other spaces
      "a\xe2\x80\x8b"
      "b\xe2\x80\xa8"
      "c",
      "\xd7\xa9\xd7\x9c\xd7\x95\xd7\x9d \xd8\xb3\xd9\x84\xd8\xa7\xd9\x85",
      "\xef\xbf\xbd\xef\xbf\xbf",
      std::string(2000, 'x'),
      std::string(300, ' ') + "end",
  };
  Dice dice(9);
  while (texts.size() < 600) {
    std::string text;
    for (int parts = dice.below(24); parts > 0; --parts) {
      text += dice.one_of<const char*>({" ",         " ",
                                        "  ",        "the",
                                        "The",       "quick",
                                        "qu",        "fox",
                                        "es",        "x",
                                        "7",         "42",
                                        "\n",        "\t",
                                        ".",         ",",
                                        "'",         "<s>",
                                        "</s>",      "<0x0A>",
                                        "\xc3\xa4",  "\xe5\xb1\x82",
                                        "e\xcc\x81", "\xf0\x9f\x98\x80",
                                        "\xc2\xa0",  "jump over",
                                        "lazy"});
    }
    texts.push_back(text);
  }
  return texts;
}

/// For transformers_tokenizer_test.py to read: into the folder SMP_TOKENIZER_FOLDER, or one of its
/// own.
TEST_F(SentencePiece, GivesEveryTextBackThatTransformersIsAskedFor) {
  const char* const given = std::getenv("SMP_TOKENIZER_FOLDER");
  const auto model = given != nullptr ? base::concat(given, "/tokenizer.model") : model_;
  if (given != nullptr) base::write_file(model, base::read_file(model_));
  write_transformers_tokenizer(model);
  const auto tokenizer = sentencepiece_tokenizer(model);
  auto all = base::Json::array();
  for (const auto& text : awkward_texts()) {
    std::vector<std::int32_t> tokens;
    tokenizer->encode(text, tokens);
    EXPECT_EQ(tokenizer->decode(tokens), text);
    all.push_back(base::Json{{"text", text}, {"tokens", tokens}});
  }
  base::write_file(model + ".texts.json", base::json_text(all));
}

TEST_F(SentencePiece, SaysWhatIsWrong) {
  EXPECT_THAT(refusal([&] { sentencepiece_tokenizer(folder_.path("none")); }), HasSubstr("none"));
  EXPECT_THAT(refusal([&] { sentencepiece_tokenizer(folder_.path("text")); }),
              HasSubstr("is no model of SentencePiece"));
  auto cut = base::read_file(model_);
  cut.resize(cut.size() / 2);
  EXPECT_THAT(refusal([&] { sentencepiece_tokenizer(folder_.write("cut.model", cut)); }),
              HasSubstr("cut.model: is no model of SentencePiece"));
  const auto tokenizer = sentencepiece_tokenizer(model_);
  const std::int32_t beyond = 320;
  EXPECT_THAT(refusal([&] { (void)tokenizer->decode({&beyond, 1}); }), HasSubstr("no token 320"));
  EXPECT_THAT(refusal([&] {
                train_sentencepiece({.files = {folder_.write("little", "ab ab\n")},
                                     .model = folder_.path("little.model"),
                                     .vocab_size = 5000});
              }),
              HasSubstr("no SentencePiece model of 5000 pieces"));
  EXPECT_THAT(
      refusal([&] {
        train_sentencepiece({.files = {folder_.path("text")}, .model = "m", .vocab_size = 9});
      }),
      HasSubstr("260 are the fewest"));
}

}  // namespace
}  // namespace smp::data
