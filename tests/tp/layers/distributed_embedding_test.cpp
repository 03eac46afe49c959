// DistributedEmbedding equals torch::nn::Embedding: constructor grid, shapes, refusals.
#include "smp/tp/distributed_embedding.h"

#include <gmock/gmock.h>
#include <torch/nn/modules/embedding.h>

#include <limits>
#include <utility>

#include "smp/error.h"
#include "support/refusal.h"
#include "tp/layer_comparison.h"

namespace smp::tp {
namespace distributed_embedding_test {

using testing::AllOf;
using testing::HasSubstr;

TEST(DistributedEmbedding, EqualsEmbedding) {
  for (const int size : {1, 2, 4}) {
    for (const bool sparse : {false, true}) {
      for (const auto padding : {std::optional<std::int64_t>(), {2}, {-1}}) {
        for (const auto& shape :
             std::vector<std::vector<std::int64_t>>{{}, {1}, {4}, {0}, {2, 0}, {3, 5}, {2, 2, 3}}) {
          if (shape.empty() && sparse && padding) continue;  // LibTorch's own backward fails
          auto options = torch::nn::EmbeddingOptions(7, 8).sparse(sparse);
          if (padding) options.padding_idx(*padding);
          SCOPED_TRACE(testing::Message() << at::IntArrayRef(shape) << (sparse ? " sparse" : "")
                                          << ", padding " << padding.value_or(99));
          auto indices = whole_numbers(size, shape, 7);
          for (const auto dtype : {at::kLong, at::kInt}) {
            for (auto& each : indices) each = each.to(dtype);
            expect_as_plain([&] { return torch::nn::Embedding(options); },
                            [&] { return nn::DistributedEmbedding(options); }, indices, 1e-12);
          }
        }
      }
    }
  }
}

/// Each rank's batch counts its own indices, some of which occur several times.
TEST(DistributedEmbedding, ScalesGradientsByFrequencyAsEmbeddingDoes) {
  for (const int size : {1, 2, 4}) {
    for (const auto& shape : std::vector<std::vector<std::int64_t>>{{}, {9}, {0}, {4, 5}}) {
      auto options = torch::nn::EmbeddingOptions(3, 8).scale_grad_by_freq(true);
      SCOPED_TRACE(testing::Message() << size << " ranks, " << at::IntArrayRef(shape));
      expect_as_plain([&] { return torch::nn::Embedding(options); },
                      [&] { return nn::DistributedEmbedding(options); },
                      whole_numbers(size, shape, 3), 1e-12);
    }
  }
}

/// Rows are as long as they are whole, whoever has which part.
TEST(DistributedEmbedding, ShortensRowsAsEmbeddingDoes) {
  const double infinity = std::numeric_limits<double>::infinity();
  for (const int size : {1, 2, 4}) {
    for (const double norm_type : {2.0, 1.0, 3.0, 0.5, infinity, -infinity}) {
      for (const auto& shape : std::vector<std::vector<std::int64_t>>{{}, {0}, {9}, {4, 5}}) {
        auto options = torch::nn::EmbeddingOptions(5, 8).max_norm(0.9).norm_type(norm_type);
        SCOPED_TRACE(testing::Message()
                     << size << " ranks, " << at::IntArrayRef(shape) << ", norm " << norm_type);
        auto indices = whole_numbers(size, shape, 5);
        for (const auto dtype : {at::kLong, at::kInt}) {
          if (dtype == at::kInt && shape.empty()) continue;
          for (auto& each : indices) each = each.to(dtype);
          expect_as_plain([&] { return torch::nn::Embedding(options); },
                          [&] { return nn::DistributedEmbedding(options); }, indices, 1e-12,
                          at::kDouble, {}, 1e-12);
        }
      }
    }
  }
}

TEST(DistributedEmbedding, TakesIndicesThatAreNotContiguous) {
  auto indices = whole_numbers(2, {3, 4}, 7);
  for (auto& each : indices) each = each.t();
  expect_as_plain([] { return torch::nn::Embedding(7, 8); },
                  [] { return nn::DistributedEmbedding(7, 8); }, indices, 1e-12);
}

/// What rank 0 of 4 sends in forward and in backward.
struct Sent {
  std::uint64_t forward_bytes, backward_bytes, forward_messages, backward_messages;
  bool operator==(const Sent&) const = default;
};

void PrintTo(const Sent& sent, std::ostream* out) {
  *out << sent.forward_bytes << " and " << sent.backward_bytes << " bytes in "
       << sent.forward_messages << " and " << sent.backward_messages << " messages";
}

Sent sent_by_embedding(Batches batches) {
  constexpr int kRanks = 4;
  d2d::SimulatedJob job(kRanks);
  std::uint64_t bytes = 0, messages = 0;
  Sent sent = {};
  const auto since = [&](std::uint64_t& so_far, std::uint64_t now) {
    return now - std::exchange(so_far, now);
  };
  on_group(
      job, kRanks,
      [&](int rank) {
        nn::DistributedEmbedding table(50, 8);
        table->to(at::kDouble);
        const auto& counters = job.channel(0).counters();
        const auto rows = table(at::ones({400}, at::kLong));
        if (rank == 0) {
          sent.forward_bytes = since(bytes, counters.tensor_bytes_sent);
          sent.forward_messages = since(messages, counters.frames_sent);
        }
        backward(rows, at::ones_like(rows));
        if (rank == 0) {
          sent.backward_bytes = since(bytes, counters.tensor_bytes_sent);
          sent.backward_messages = since(messages, counters.frames_sent);
        }
      },
      batches);
  return sent;
}

/// T = 4, B = N = 400, D = 8. A collective is a message to each of the three others: all-gather of
/// indices and all-to-all of rows, and the latter back; of a prescaled batch one all-gather.
TEST(DistributedEmbedding, SendsWhatTheFormulasSay) {
  const std::uint64_t rows = 400 * sizeof(double), indices = 400 * sizeof(std::int64_t);
  EXPECT_EQ(sent_by_embedding(Batches::kOwn),
            (Sent{3 * indices + rows * 3 * 8 / 4, rows * 3 * 8 / 4, 2 * 3, 3}));
  EXPECT_EQ(sent_by_embedding(Batches::kPrescaled), (Sent{rows * 3 * 8 / 4, 0, 3, 0}));
}

TEST(DistributedEmbedding, RefusesWhatItCannotLookUp) {
  d2d::SimulatedJob job(2);
  on_group(job, 2, [](int) {
    EXPECT_THAT(refusal<UsageError>([] { nn::DistributedEmbedding(10, 5); }),
                AllOf(HasSubstr("'weight', shape [10, 5]"), HasSubstr("dimension 1 for 2")));
    const auto counted = torch::nn::EmbeddingOptions(4, 4).max_norm(1).norm_type(0);
    EXPECT_THAT(refusal<UnsupportedError>([&] { nn::DistributedEmbedding{counted}; }),
                HasSubstr("norm_type 0 shortens a row again"));
    nn::DistributedEmbedding table(4, 4);
    EXPECT_THAT(refusal<UsageError>([&] { table(at::ones({2})); }), HasSubstr("indices of type"));
    for (const auto dtype : {at::kShort, at::kByte, at::kBool}) {
      EXPECT_THAT(refusal<UsageError>([&] { table(at::ones({2}, dtype)); }),
                  HasSubstr("expected torch::kLong or torch::kInt"))
          << "torch::nn::Embedding refuses " << dtype;
    }
  });
}

}  // namespace distributed_embedding_test
}  // namespace smp::tp
