// Rows of tables that many tokens of a microbatch look up: gradients of 16 bits, added up.
#include <gmock/gmock.h>
#include <torch/types.h>

#include <vector>

#include "api/two_ranks.h"

namespace smp {
namespace frequent_rows_test {

using at::Tensor;

struct TableImpl : torch::nn::Module {
  TableImpl() { weight = register_parameter("weight", torch::ones({3, 2}, torch::kBFloat16)); }
  Tensor forward(const Tensor& ids) { return at::embedding(weight, ids); }
  Tensor weight;
};
SMP_MODULE(Table);

struct ReaderImpl : torch::nn::Module {
  Tensor forward(const Tensor& ids) { return table(ids); }
  Table table = register_module("table", Table());
};
SMP_MODULE(Reader);

Tensor ids() {  // row 1 a thousand times, row 2 once
  auto all = torch::ones({1001}, torch::kLong);
  all[1000] = 2;
  return all;
}

/// LibTorch's kernel stops at 256, which has no neighbour at a distance of 1.
TEST(FrequentRows, LibTorchLosesThem) {
  Table table;
  table->forward(ids()).sum().backward();
  EXPECT_EQ(table->weight.grad()[1][0].item<float>(), 256);
}

TEST(FrequentRows, AreAddedUpInFloat32) {
  Config config;
  config.microbatches = 2;
  config.loss = "sum";
  config.plan_cache = "off";
  for (const int stages : {1, 2}) {
    run_local(stages,
              [&] {
                Reader reader;
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
