// DistributedEmbedding equals torch::nn::Embedding: constructor grid, shapes, refusals.
#include "smp/tp/distributed_embedding.h"

#include <gmock/gmock.h>
#include <torch/nn/modules/embedding.h>

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
        for (const auto& shape : std::vector<std::vector<std::int64_t>>{{4}, {3, 5}, {2, 2, 3}}) {
          auto options = torch::nn::EmbeddingOptions(7, 8).sparse(sparse);
          if (padding) options.padding_idx(*padding);
          SCOPED_TRACE(testing::Message() << at::IntArrayRef(shape) << (sparse ? " sparse" : "")
                                          << ", padding " << padding.value_or(99));
          expect_as_plain([&] { return torch::nn::Embedding(options); },
                          [&] { return nn::DistributedEmbedding(options); },
                          whole_numbers(size, shape, 7), 1e-12);
        }
      }
    }
  }
}

TEST(DistributedEmbedding, RefusesWhatNeedsWholeRows) {
  d2d::SimulatedJob job(2);
  on_group(job, 2, [](int) {
    using Options = torch::nn::EmbeddingOptions;
    EXPECT_THAT(refusal<UsageError>([] { nn::DistributedEmbedding(10, 5); }),
                AllOf(HasSubstr("'weight', shape [10, 5]"), HasSubstr("dimension 1 for 2")));
    EXPECT_THAT(
        refusal<UnsupportedError>([] { nn::DistributedEmbedding(Options(4, 4).max_norm(1)); }),
        HasSubstr("max_norm needs the norms of whole rows"));
    EXPECT_THAT(refusal<UnsupportedError>(
                    [] { nn::DistributedEmbedding(Options(4, 4).scale_grad_by_freq(true)); }),
                HasSubstr("scale_grad_by_freq"));
    nn::DistributedEmbedding table(4, 4);
    EXPECT_THAT(refusal<UsageError>([&] { table(at::ones({2})); }), HasSubstr("indices of type"));
    EXPECT_THROW(table(at::scalar_tensor(1, at::kLong)), UsageError);
  });
}

}  // namespace distributed_embedding_test
}  // namespace smp::tp
