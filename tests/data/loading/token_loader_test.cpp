// Loaders against a reference, over random corpora.
#include "smp/data/token_loader.h"

#include <gmock/gmock.h>
#include <sys/wait.h>
#include <torch/types.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <thread>

#include "data/loading/corpus.h"
#include "support/refusal.h"

namespace smp::data {
namespace {

using testing::AllOf;
using testing::HasSubstr;

int corpora(int usual) {
  const char* const wanted = std::getenv("SMP_CORPORA");
  return wanted == nullptr ? usual : std::atoi(wanted);
}

TokenLoaderOptions random_options(Dice& dice) {
  TokenLoaderOptions options;
  options.tokenizer = bytes_tokenizer();
  options.context = dice.between(1, 9);
  options.rows = dice.between(1, 4);
  options.replicas = dice.between(1, 4);
  options.shuffle = dice.chance(0.7);
  options.seed = dice.next();
  options.epochs = dice.between(1, 3);
  options.drop_last = dice.chance(0.3);
  if (dice.chance(0.3)) options.begin_of_document = 1;
  options.reset_at_documents = dice.chance(0.5);
  options.ignore_across_documents = dice.chance(0.3);
  options.skip_damaged = true;
  options.threads = dice.one_of({0, 0, 1, 3});
  options.batches_ahead = dice.between(1, 3);
  return options;
}

// Row `row` of what a batch should be, by definition.
struct ExpectedRow {
  std::vector<std::int64_t> tokens, targets, positions, documents;
};

ExpectedRow expected_row(const TokenLine& line, std::size_t begin,
                         const TokenLoaderOptions& options) {
  ExpectedRow row;
  const auto size = line.tokens.size();
  std::int64_t document = 0;
  std::int64_t position = 0;
  for (std::size_t i = begin; i < begin + static_cast<std::size_t>(options.context); ++i) {
    const bool starts = i < size ? line.begins[i] : i == size;
    if (starts && i > begin) {
      ++document;
      position = 0;
    }
    row.tokens.push_back(i < size ? line.tokens[i] : 256);
    const bool ignored = i + 1 >= size || (options.ignore_across_documents && line.begins[i + 1]);
    row.targets.push_back(ignored ? kIgnoredTarget : line.tokens[i + 1]);
    row.documents.push_back(document);
    row.positions.push_back(position++);
  }
  return row;
}

std::vector<std::int64_t> values(const at::Tensor& tensor, std::int64_t row) {
  EXPECT_TRUE(tensor.is_contiguous());
  const auto* const first = tensor.data_ptr<std::int64_t>() + row * tensor.size(1);
  return {first, first + tensor.size(1)};
}

// Compares step `step` of one replica.
void compare(const Batch& batch, const TokenLine& line, std::int64_t step,
             const TokenLoaderOptions& options) {
  ASSERT_EQ(batch.tokens.sizes(), at::IntArrayRef({options.rows, options.context}));
  std::int64_t counted = 0;
  for (std::int64_t row = 0; row < options.rows; ++row) {
    const auto row_of_all = (step * options.replicas + options.replica) * options.rows + row;
    const auto expected =
        expected_row(line, static_cast<std::size_t>(row_of_all * options.context), options);
    ASSERT_EQ(values(batch.tokens, row), expected.tokens);
    ASSERT_EQ(values(batch.targets, row), expected.targets);
    counted += options.context -
               std::count(expected.targets.begin(), expected.targets.end(), kIgnoredTarget);
    ASSERT_EQ(batch.documents.defined(), options.reset_at_documents);
    if (!options.reset_at_documents) continue;
    ASSERT_EQ(values(batch.documents, row), expected.documents);
    ASSERT_EQ(values(batch.positions, row), expected.positions);
  }
  ASSERT_EQ(batch.counted, counted);
}

TEST(TokenLoader, MakesWhatTheReferenceMakes) {
  Dice dice(11);
  for (int round = 0; round < corpora(1500); ++round) {
    const ScratchFolder folder;
    const auto corpus = random_corpus(dice, folder, dice.one_of({0., 0., 0.2, 1.}));
    const auto options = random_options(dice);
    const auto line = reference_line(corpus, options);
    const auto all = static_cast<std::int64_t>(line.tokens.size());
    const auto of_step = options.replicas * options.rows * options.context;
    const auto steps = options.drop_last ? all / of_step : (all + of_step - 1) / of_step;
    for (auto& loader : replicas_of(corpus, options)) {
      if (all == 0) {
        ASSERT_THAT(refusal([&] { (void)loader.next(); }), HasSubstr("documents are damaged"));
        continue;
      }
      for (std::int64_t step = 0; step < steps; ++step) {
        const auto batch = loader.next();
        ASSERT_TRUE(batch) << step << " of " << steps << ", corpus " << round;
        ASSERT_NO_FATAL_FAILURE(compare(*batch, line, step, loader.options())) << round;
        ASSERT_EQ(loader.counters().steps, step + 1);
        ASSERT_EQ(loader.counters().tokens, std::min(all, (step + 1) * of_step));
      }
      ASSERT_FALSE(loader.next()) << steps << " steps, corpus " << round;
      ASSERT_FALSE(loader.next());
      if (options.drop_last || steps == 0) continue;
      const auto damaged = std::count(corpus.damaged.begin(), corpus.damaged.end(), true);
      ASSERT_EQ(loader.counters().documents, options.epochs * (corpus.size() - damaged));
      ASSERT_EQ(loader.counters().skipped, options.epochs * damaged);
      ASSERT_EQ(loader.counters().epoch, options.epochs);
    }
  }
}

// At every step, on other numbers of replicas, with other rows and threads: the same tokens are
// left.
TEST(TokenLoader, GoesOnAnywhereFromAnyStep) {
  Dice dice(12);
  for (int round = 0; round < corpora(30); ++round) {
    const ScratchFolder folder;
    const auto corpus = random_corpus(dice, folder, dice.one_of({0., 0.2}));
    auto options = random_options(dice);
    options.drop_last = false;
    const auto line = reference_line(corpus, options).tokens;
    if (line.empty()) continue;
    auto loaders = replicas_of(corpus, options);
    for (std::size_t step = 0, done = false; !done; ++step) {
      const auto state = dice.one_of(loaders).state();
      for (auto& loader : loaders) ASSERT_EQ(loader.state(), state);  // it is everybody's
      auto other = options;
      other.replicas = dice.between(1, 5);
      other.rows = dice.between(1, 4);
      other.context = dice.between(1, 9);
      other.threads = dice.below(3);
      auto continued = replicas_of(corpus, other);
      for (auto& loader : continued) loader.load_state(state);
      const auto read = static_cast<std::size_t>(loaders[0].counters().tokens);
      ASSERT_EQ(
          all_tokens(continued),
          std::vector<std::int64_t>(line.begin() + static_cast<std::ptrdiff_t>(read), line.end()))
          << "after step " << step << " of corpus " << round << ": " << state;
      ASSERT_EQ(continued[0].counters().tokens, static_cast<std::int64_t>(line.size()));
      for (auto& loader : loaders) done = !loader.next();
    }
    ASSERT_EQ(loaders[0].counters().tokens, static_cast<std::int64_t>(line.size()));
  }
}

/// A corpus of 40 JSON lines with some of a hundred bytes each.
class Loading : public testing::Test {
 protected:
  std::string write_lines(int damaged_line) {
    std::string content;
    for (int i = 1; i <= 40; ++i) {
      content +=
          i == damaged_line ? "{\"text\": 1}\n" : "{\"text\": \"" + std::string(99, 'a') + "\"}\n";
    }
    return folder_.write("some.jsonl", content);
  }
  TokenLoaderOptions options() {
    TokenLoaderOptions options;
    options.tokenizer = bytes_tokenizer();
    options.context = 50;
    options.shuffle = false;
    return options;
  }

  ScratchFolder folder_;
};

TEST_F(Loading, ThrowsAtTheStepThatNeedsADamagedDocument) {
  const auto documents = open_documents({write_lines(7)});
  for (const int threads : {0, 1, 2}) {
    auto options = this->options();
    options.threads = threads;
    TokenLoader loader(documents, options);
    const auto begin = loader.state();
    // Six good lines are 600 tokens; the last row needs the token behind them.
    for (int step = 0; step < 11; ++step) ASSERT_TRUE(loader.next());
    for (int i = 0; i < 2; ++i) {
      EXPECT_THAT(refusal([&] { (void)loader.next(); }),
                  AllOf(HasSubstr("some.jsonl:7: "), HasSubstr("\"text\" is 1")));
    }
    EXPECT_EQ(loader.counters().tokens, 550);
    loader.load_state(loader.state());  // tries once more
    EXPECT_THAT(refusal([&] { (void)loader.next(); }), HasSubstr("some.jsonl:7: "));
    loader.load_state(begin);
    EXPECT_EQ(refusal([&] { ASSERT_TRUE(loader.next()); }), "accepted") << "before the damage";
  }
}

TEST_F(Loading, CountsWhatItSkips) {
  auto options = this->options();
  options.skip_damaged = true;
  options.epochs = 2;
  TokenLoader loader(open_documents({write_lines(7)}), options);
  while (loader.next()) {
  }
  EXPECT_EQ(loader.counters().skipped, 2);
  EXPECT_EQ(loader.counters().documents, 78);
  EXPECT_EQ(loader.counters().tokens, 7800);
}

TEST_F(Loading, EndsWhereNothingCanBeRead) {
  auto options = this->options();
  options.skip_damaged = true;
  for (const int epochs : {0, 1, 3}) {
    options.epochs = epochs;
    TokenLoader loader(open_documents({folder_.write("bad.jsonl", "1\n2\n")}), options);
    EXPECT_THAT(refusal([&] { (void)loader.next(); }), HasSubstr("all 2 documents are damaged"));
  }
}

// What is left of an epoch may be damaged.
TEST_F(Loading, EndsBehindDamagedDocuments) {
  const auto documents = open_documents({folder_.write("some.jsonl", "{\"text\": \"a\"}\n1\n2\n")});
  auto options = this->options();
  options.skip_damaged = true;
  options.context = 2;
  TokenLoader loader(documents, options), again(documents, options);
  ASSERT_TRUE(loader.next());
  const auto state = loader.state();
  EXPECT_FALSE(loader.next());
  again.load_state(state);
  EXPECT_FALSE(again.next());
}

// The damaged documents at the end of one epoch and at the begin of the next are as many as all.
TEST_F(Loading, GoesOnBehindDamagedDocumentsOfTwoEpochs) {
  const auto path = folder_.write("some.jsonl", "1\n{\"text\": \"good\"}\n2\n");
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    auto options = this->options();
    options.context = 5;
    options.shuffle = true;
    options.seed = seed;
    options.skip_damaged = true;
    options.epochs = 0;
    TokenLoader loader(open_documents({path}), options);
    for (int i = 0; i < 20; ++i) {
      const auto batch = loader.next();
      ASSERT_TRUE(batch);
      EXPECT_EQ(batch->tokens[0][0].item<int>(), 'g');
    }
  }
}

// All replicas leave out the same documents, those of a damaged block, though each needs others.
TEST_F(Loading, DamagedBlocksOfShardsAreSkippedAlike) {
  const auto path = folder_.path("some.tokens");
  {
    TokenShardWriter writer(path, 257, 256);
    for (int i = 0; i < 60; ++i) writer.append(std::vector<std::int32_t>(5000, i));
    writer.finish();
  }
  auto bytes = base::read_file(path);
  bytes[128 + 70'000] ^= 1;  // block 1: tokens 32,768 to 65,535, of documents 6 to 13
  base::write_file(path, bytes);
  auto options = this->options();
  options.tokenizer = nullptr;
  options.replicas = 3;
  options.context = 1000;
  options.skip_damaged = true;
  Corpus corpus;
  corpus.files = {path};
  auto loaders = replicas_of(corpus, options);
  std::vector<std::int64_t> expected;
  for (int i = 0; i < 60; ++i) {
    if (i >= 6 && i <= 13) continue;
    expected.insert(expected.end(), 5000, i);
    expected.push_back(256);
  }
  EXPECT_EQ(all_tokens(loaders), expected);
  for (auto& loader : loaders) EXPECT_EQ(loader.counters().skipped, 8);
  options.skip_damaged = false;
  options.replicas = 1;
  TokenLoader strict(open_documents({path}), options);
  EXPECT_THAT(refusal([&] {
                while (strict.next()) {
                }
              }),
              HasSubstr("some.tokens: bytes 65664 to 131199"));
}

TEST_F(Loading, PackedTextGivesTheSameBatches) {
  Dice dice(4);
  for (int round = 0; round < 20; ++round) {
    const auto corpus = random_corpus(dice, folder_, 0);
    auto options = random_options(dice);
    const auto path = folder_.path("packed.tokens");
    const auto packed = pack_tokens(open_documents(corpus.files), options.tokenizer, path,
                                    {.threads = dice.between(1, 3)});
    EXPECT_EQ(packed.shard.documents, corpus.size());
    check_token_shard(path);
    auto of_text = replicas_of(corpus, options);
    auto packed_corpus = corpus;
    packed_corpus.files = {path};
    options.tokenizer = nullptr;
    auto of_shard = replicas_of(packed_corpus, options);
    EXPECT_EQ(all_tokens(of_text), all_tokens(of_shard));
  }
  EXPECT_THAT(refusal([&] {
                pack_tokens(open_documents({write_lines(3)}), bytes_tokenizer(),
                            folder_.path("none.tokens"));
              }),
              HasSubstr("some.jsonl:3"));
  EXPECT_FALSE(base::file_exists(folder_.path("none.tokens")));
  EXPECT_EQ(pack_tokens(open_documents({write_lines(3)}), bytes_tokenizer(),
                        folder_.path("some.tokens"), {.skip_damaged = true})
                .skipped,
            1);
}

/// A tokenizer that waits, and counts.
class SlowTokenizer final : public Tokenizer {
 public:
  void encode(std::string_view text, std::vector<std::int32_t>& tokens) const override {
    ++begun;
    while (held) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    bytes_tokenizer()->encode(text, tokens);
  }
  std::string decode(std::span<const std::int32_t>) const override { return {}; }
  std::int64_t vocab_size() const override { return 257; }
  std::int32_t end_of_document() const override { return 256; }
  std::string name() const override { return "slow"; }

  mutable std::atomic<int> begun = 0;
  std::atomic<bool> held = false;
};

TEST_F(Loading, SaysWhatItWaitsForAfterTheDeadline) {
  const auto tokenizer = std::make_shared<SlowTokenizer>();
  tokenizer->held = true;
  auto options = this->options();
  options.tokenizer = tokenizer;
  options.deadline_seconds = 0.05;
  TokenLoader loader(open_documents({write_lines(0)}), options);
  EXPECT_THAT(refusal<ResourceError>([&] { (void)loader.next(); }),
              AllOf(HasSubstr("no batch within 0.05 s"), HasSubstr("some.jsonl:1 ")));
  tokenizer->held = false;
  std::int64_t steps = 0;
  while (true) {  // nothing was lost by that
    try {
      if (!loader.next()) break;
      ++steps;
    } catch (const ResourceError&) {
    }
  }
  EXPECT_EQ(steps, 80);
}

TEST_F(Loading, ReadsAheadButNotForEver) {
  const auto tokenizer = std::make_shared<SlowTokenizer>();
  auto options = this->options();
  options.tokenizer = tokenizer;
  options.batches_ahead = 2;
  // Some 130 KB each, so that a portion is one document.
  std::string content;
  for (int i = 0; i < 40; ++i) content += std::string(140'000, 'a') + "\n";
  TokenLoader loader(open_documents({folder_.write("long.txt", content)}), options);
  ASSERT_TRUE(loader.next());
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_GE(tokenizer->begun, 3);  // while nobody asked
  EXPECT_LE(tokenizer->begun, 5);
}

TEST_F(Loading, EndsAtAnyMoment) {
  Dice dice(5);
  const auto documents = open_documents({write_lines(0)});
  for (int round = 0; round < 200; ++round) {
    auto options = this->options();
    options.threads = dice.between(1, 4);
    options.epochs = 0;
    TokenLoader loader(documents, options);
    for (int step = dice.below(30); step > 0; --step) (void)loader.next();
    if (dice.chance(0.3)) {
      loader.load_state(loader.state());
      (void)loader.next();
    }
  }
}

TEST_F(Loading, AForkedChildEndsItWithoutWaiting) {
  TokenLoader loader(open_documents({write_lines(0)}), options());
  ASSERT_TRUE(loader.next());
  const auto child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::alarm(20);
    const auto said = refusal([&] { (void)loader.next(); });
    loader = TokenLoader(open_documents({folder_.path("some.jsonl")}), options());
    const bool works = loader.next().has_value();
    ::_exit(said.find("forked child") != std::string::npos && works ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(loader.next());
}

TEST_F(Loading, RefusesStatesOfOtherDocuments) {
  const auto documents = open_documents({write_lines(0)});
  auto options = this->options();
  TokenLoader loader(documents, options);
  ASSERT_TRUE(loader.next());
  const auto state = loader.state();
  EXPECT_THAT(state, testing::Not(HasSubstr("\n")));
  const auto said_of = [&](const TokenLoaderOptions& other, const Documents& others) {
    TokenLoader loader(others, other);
    return refusal([&] { loader.load_state(state); });
  };
  EXPECT_EQ(said_of(options, documents), "accepted");
  options.seed = 9;
  EXPECT_THAT(said_of(options, documents), HasSubstr("another seed"));
  options = this->options();
  options.shuffle = true;
  EXPECT_THAT(said_of(options, documents), HasSubstr("another order"));
  options = this->options();
  options.begin_of_document = 3;
  EXPECT_THAT(said_of(options, documents), HasSubstr("another tokenizer"));
  EXPECT_THAT(said_of(this->options(), open_documents({folder_.write("other.txt", "text")})),
              HasSubstr("other documents"));
  for (const char* const no_state :
       {"", "{}", "[1]", "{\"token_loader\": 2}", "{\"token_loader\""}) {
    EXPECT_THAT(refusal([&] { loader.load_state(no_state); }),
                HasSubstr("state of a token loader"));
  }
  EXPECT_EQ(loader.state(), state);  // it stands where it stood
}

TEST_F(Loading, RefusesOptionsThatMakeNoSense) {
  const auto documents = open_documents({write_lines(0)});
  const auto said_of = [&](auto change) {
    auto options = this->options();
    change(options);
    return refusal([&] { TokenLoader(documents, options); });
  };
  EXPECT_THAT(said_of([](auto& o) { o.context = 0; }), HasSubstr("1 rows of 0 tokens"));
  EXPECT_THAT(said_of([](auto& o) { o.rows = std::int64_t{1} << 40; }), HasSubstr("at most"));
  EXPECT_THAT(said_of([](auto& o) { o.replica = 1; }), HasSubstr("no replica 1 of 1"));
  EXPECT_THAT(said_of([](auto& o) { o.epochs = -1; }), HasSubstr("epochs is -1"));
  EXPECT_THAT(said_of([](auto& o) { o.threads = -1; }), HasSubstr("threads is -1"));
  EXPECT_THAT(said_of([](auto& o) { o.batches_ahead = 0; }), HasSubstr("batches_ahead is 0"));
  EXPECT_THAT(said_of([](auto& o) { o.deadline_seconds = 0; }), HasSubstr("deadline_seconds is 0"));
  EXPECT_THAT(said_of([](auto& o) { o.begin_of_document = 257; }), HasSubstr("has 257 tokens"));
  EXPECT_THAT(said_of([](auto& o) { o.tokenizer = nullptr; }), HasSubstr("no tokenizer was given"));
  const auto shard = folder_.path("some.tokens");
  TokenShardWriter(shard, 300, 0).finish();
  TokenShardWriter writer(shard, 300, 0);
  writer.append(std::vector<std::int32_t>{1});
  writer.finish();
  EXPECT_THAT(refusal([&] { TokenLoader(open_documents({shard}), options()); }),
              AllOf(HasSubstr("some.tokens has 300"), HasSubstr("bytes has 257")));
}

TEST(DocumentMask, AllowsWhatIsBeforeInTheSameDocument) {
  const auto documents = torch::tensor({{0, 0, 1}, {0, 0, 0}}, torch::kLong);
  const auto expected =
      torch::tensor({1, 0, 0, 1, 1, 0, 0, 0, 1, /**/ 1, 0, 0, 1, 1, 0, 1, 1, 1}, torch::kLong)
          .view({2, 1, 3, 3});
  const auto mask = document_mask(documents);
  EXPECT_EQ(mask.scalar_type(), torch::kBool);
  EXPECT_TRUE(mask.to(torch::kLong).equal(expected));
  EXPECT_THAT(refusal([] { document_mask({}); }), HasSubstr("reset_at_documents"));
}

}  // namespace
}  // namespace smp::data
