// DistributedVocabulary equals a table of plain LibTorch that is read by tokens and multiplied with
// vectors: look-up, scores, losses, both in one model; bytes; refusals.
#include "smp/tp/distributed_vocabulary.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include "smp/error.h"
#include "support/refusal.h"
#include "tp/layer_comparison.h"

namespace smp::tp {
namespace distributed_vocabulary_test {

using testing::HasSubstr;

constexpr std::int64_t kTokens = 12, kWidth = 3;

/// Labels that depend on the vectors, some ignored.
at::Tensor labels_of(const at::Tensor& hidden, std::int64_t tokens) {
  const auto first = (hidden.detach().select(-1, 0) * 1000).abs().to(at::kLong);
  return at::remainder(first, tokens).masked_fill(first.remainder(4) == 0, -100);
}

struct PlainTableImpl : torch::nn::Module {
  PlainTableImpl(std::int64_t tokens, std::optional<double> deviation)
      : table(register_module("table", torch::nn::Embedding(tokens, kWidth))) {
    const torch::NoGradGuard no_grad;
    if (deviation) table->weight.normal_(0, *deviation);
  }
  at::Tensor read(const at::Tensor& tokens) { return table(tokens); }
  at::Tensor scores(const at::Tensor& hidden) { return torch::linear(hidden, table->weight); }
  at::Tensor losses(const at::Tensor& hidden, const at::Tensor& labels) {
    const auto options = torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kNone);
    return torch::nn::functional::cross_entropy(scores(hidden).view({-1, table->weight.size(0)}),
                                                labels.view(-1), options)
        .view(labels.sizes());
  }
  torch::nn::Embedding table;
};

struct SlicedTableImpl : torch::nn::Module {
  SlicedTableImpl(std::int64_t tokens, std::optional<double> deviation)
      : table(register_module("table", nn::DistributedVocabulary(tokens, kWidth, deviation))) {}
  at::Tensor read(const at::Tensor& tokens) { return table(tokens); }
  at::Tensor scores(const at::Tensor& hidden) { return table->scores(hidden); }
  at::Tensor losses(const at::Tensor& hidden, const at::Tensor& labels) {
    return table->losses(hidden, labels);
  }
  nn::DistributedVocabulary table;
};

enum class Use { kRead, kScores, kLosses, kAll };

/// One use of a table as a layer of one argument.
template <class Table>
struct UsedImpl : Table {
  UsedImpl(Use how, std::int64_t num_tokens, std::optional<double> deviation)
      : Table(num_tokens, deviation), use(how), tokens(num_tokens) {}
  at::Tensor forward(const at::Tensor& x) {
    switch (use) {
      case Use::kRead:
        return this->read(x);
      case Use::kScores:
        return this->scores(x);
      case Use::kLosses:
        return this->losses(x, labels_of(x, tokens));
      default:
        return this->losses(torch::tanh(this->read(x)), x);
    }
  }
  const Use use;
  const std::int64_t tokens;
};

/// Of 5 tokens on 4 ranks the third has one, and the last none.
TEST(DistributedVocabulary, EqualsOneTableForBoth) {
  for (const int size : {1, 2, 4}) {
    for (const std::int64_t tokens : {12, 13, 5}) {
      for (const auto use : {Use::kRead, Use::kScores, Use::kLosses, Use::kAll}) {
        for (const auto& rows :
             std::vector<std::vector<std::int64_t>>{{}, {0}, {4}, {2, 0}, {2, 5}}) {
          const auto deviation = rows.size() == 1 ? std::optional<double>(0.3) : std::nullopt;
          SCOPED_TRACE(testing::Message() << "use " << static_cast<int>(use)
                                          << at::IntArrayRef(rows) << ", " << tokens << " tokens");
          auto vectors = rows;
          vectors.push_back(kWidth);
          const bool of_tokens = use == Use::kRead || use == Use::kAll;
          expect_as_plain(
              [&] { return std::make_shared<UsedImpl<PlainTableImpl>>(use, tokens, deviation); },
              [&] { return std::make_shared<UsedImpl<SlicedTableImpl>>(use, tokens, deviation); },
              of_tokens ? whole_numbers(size, rows, tokens) : numbers(size, vectors), 1e-12);
        }
      }
    }
  }
}

TEST(DistributedVocabulary, TakesTokensOf32Bits) {
  auto tokens = whole_numbers(2, {2, 5}, kTokens);
  for (auto& each : tokens) each = each.to(at::kInt);
  expect_as_plain(
      [] { return std::make_shared<UsedImpl<PlainTableImpl>>(Use::kRead, kTokens, std::nullopt); },
      [] { return std::make_shared<UsedImpl<SlicedTableImpl>>(Use::kRead, kTokens, std::nullopt); },
      tokens, 1e-12);
}

TEST(DistributedVocabulary, SendsWhatTheFormulaSays) {
  constexpr int size = 4;
  constexpr std::uint64_t rows = 6, real = sizeof(double), whole = sizeof(std::int64_t);
  struct Sent {
    std::uint64_t forward, backward;
  };
  const auto measured = [](Use use) {
    d2d::SimulatedJob job(size);
    Sent sent{};
    const auto bytes = [&] { return job.channel(0).counters().tensor_bytes_sent; };
    on_group(job, size, [&](int rank) {
      UsedImpl<SlicedTableImpl> layer(use, kTokens, {});
      layer.to(at::kDouble);
      const auto place = static_cast<std::size_t>(rank);
      auto x = use == Use::kRead ? whole_numbers(size, {2, 3}, kTokens)[place]
                                 : numbers(size, {2, 3, kWidth})[place].requires_grad_();
      const auto y = layer.forward(x);
      if (rank == 0) sent.forward = bytes();
      backward(y, at::ones_like(y));
      if (rank == 0) sent.backward = bytes() - sent.forward;
    });
    return sent;
  };
  const auto read = measured(Use::kRead);
  EXPECT_EQ(read.forward, (size - 1) * rows * (kWidth * real + whole));
  EXPECT_EQ(read.backward, (size - 1) * rows * kWidth * real);
  const auto scores = measured(Use::kScores);
  EXPECT_EQ(scores.forward, (size - 1) * rows * (kWidth + kTokens / size) * real);
  EXPECT_EQ(scores.backward, scores.forward);
  const auto losses = measured(Use::kLosses);
  EXPECT_EQ(losses.forward, (size - 1) * rows * ((kWidth + 2) * real + whole));
  EXPECT_EQ(losses.backward, (size - 1) * rows * (kWidth + 2) * real);
}

TEST(DistributedVocabulary, RefusesWhatDoesNotFit) {
  d2d::SimulatedJob job(2);
  on_group(job, 2, [](int) {
    nn::DistributedVocabulary table(6, 4);
    EXPECT_THAT(refusal<UsageError>([&] { table(at::full({2}, 6, at::kLong)); }),
                HasSubstr("token 6 is none of the 6"));
    EXPECT_THAT(refusal<UsageError>([&] { table(at::zeros({2})); }), HasSubstr("tokens are Float"));
    EXPECT_THAT(refusal<UsageError>([&] {
                  table->scores(at::zeros({2, 3}));
                }),
                HasSubstr("scores of [2, 3], expected [.., 4]"));
    EXPECT_THAT(refusal<UsageError>([&] { table->scores(at::zeros({})); }),
                HasSubstr("scores of [], expected [.., 4]"));
    EXPECT_THAT(refusal<UsageError>([&] {
                  table->losses(at::zeros({2, 4}), at::zeros({3}));
                }),
                HasSubstr("losses of [2, 4] with labels [3]"));
  });
}

}  // namespace distributed_vocabulary_test
}  // namespace smp::tp
