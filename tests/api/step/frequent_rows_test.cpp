// Rows of tables that many tokens of a microbatch look up: gradients of 16 bits, added up.
#include <gmock/gmock.h>
#include <torch/types.h>

#include <vector>

#include "api/two_ranks.h"

namespace smp {
namespace frequent_rows_test {

using at::Tensor;

/// How a program looks rows up.
enum class Lookup { kEmbedding, kBag, kIndexSelect, kIndex };
constexpr Lookup kLookups[] = {Lookup::kEmbedding, Lookup::kBag, Lookup::kIndexSelect,
                               Lookup::kIndex};

struct TableImpl : torch::nn::Module {
  explicit TableImpl(Lookup how = Lookup::kEmbedding) : lookup(how) {
    weight = register_parameter("weight", torch::ones({3, 2}, torch::kBFloat16));
  }
  Tensor forward(const Tensor& ids) {
    switch (lookup) {
      case Lookup::kBag:
        return std::get<0>(at::embedding_bag(weight, ids, torch::arange(ids.numel())));
      case Lookup::kIndexSelect:
        return weight.index_select(0, ids);
      case Lookup::kIndex:
        return weight.index({ids});
      default:
        return at::embedding(weight, ids);
    }
  }
  const Lookup lookup;
  Tensor weight;
};
SMP_MODULE(Table);

struct ReaderImpl : torch::nn::Module {
  explicit ReaderImpl(Lookup how) : table(register_module("table", Table(how))) {}
  Tensor forward(const Tensor& ids) { return table(ids); }
  Table table;
};
SMP_MODULE(Reader);

Tensor ids() {  // row 1 a thousand times, row 2 once
  auto all = torch::ones({1001}, torch::kLong);
  all[1000] = 2;
  return all;
}

/// LibTorch's kernels stop at 256, which has no neighbour at a distance of 1; that of index_select
/// does not.
TEST(FrequentRows, LibTorchLosesThem) {
  for (const auto how : kLookups) {
    Table table(how);
    table->forward(ids()).sum().backward();
    EXPECT_EQ(table->weight.grad()[1][0].item<float>(), how == Lookup::kIndexSelect ? 1000 : 256)
        << static_cast<int>(how);
  }
}

TEST(FrequentRows, AreAddedUpInFloat32) {
  Config config;
  config.microbatches = 2;
  config.loss = "sum";
  config.plan_cache = "off";
  for (const int number : {0, 1, 2, 3, 4, 5, 6, 7}) {
    const int stages = 1 + number % 2;
    const auto how = kLookups[number / 2];
    SCOPED_TRACE(testing::Message() << stages << " stages, lookup " << static_cast<int>(how));
    run_local(stages,
              [&] {
                Reader reader(how);
                DistributedModel model(reader);
                model.set_partition("", 0);
                model.set_partition("table", stages - 1);
                auto train = smp::step([&](Tensor tokens) {
                  if (!is_tracing()) model.backward(model(tokens).sum());
                });
                train(ids());
                const auto& weight = reader->table->weight;
                if (!model.owns(weight)) return;
                const auto gradient = weight.grad();
                EXPECT_EQ(gradient.scalar_type(), torch::kBFloat16);
                EXPECT_TRUE(torch::allclose(gradient.select(1, 0).to(torch::kFloat),
                                            torch::tensor({0.0, 1000.0, 1.0}), 0.01))
                    << gradient;
              },
              config, {.seed = 1});
  }
}

}  // namespace frequent_rows_test
}  // namespace smp
