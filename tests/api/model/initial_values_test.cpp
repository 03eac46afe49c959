// Replicas that do not start from the same values are told so, or take those of the first.
#include "api/model/initial_values.h"

#include <gmock/gmock.h>
#include <torch/nn/modules/linear.h>

#include "smp/smp.h"
#include "smp/tp.h"
#include "support/refusal.h"

namespace smp {
namespace initial_values_test {

using testing::AllOf;
using testing::HasSubstr;

Config config_of(int pp, int tp = 1) {
  Config config;
  config.pipeline_parallel_degree = pp;
  config.tensor_parallel_degree = tp;
  config.microbatches = 2;
  return config;
}

struct NetImpl : torch::nn::Module {
  NetImpl()
      : one(register_module("one", nn::Linear(4, 4))),
        two(register_module("two", nn::Linear(4, 4))),
        scratch(register_buffer("scratch", torch::full({2}, float(rdp_rank())))) {}
  at::Tensor forward(const at::Tensor& x) { return two(one(x)); }
  nn::Linear one, two;
  at::Tensor scratch;
};
SMP_MODULE(Net);

struct Placed {
  Placed() : model(net) {
    model.set_partition("", 0);
    model.set_partition("two", pp_size() - 1);
  }
  Net net;
  DistributedModel<Net> model;
};

TEST(InitialValues, ThatDifferBetweenReplicasAreRefusedOnAllRanks) {
  for (const int pp : {1, 2}) {
    int refused = 0;
    run_local(2 * pp,
              [&] {
                torch::manual_seed(3);
                Placed own;
                if (dp_rank() == 1) {
                  const torch::NoGradGuard no_grad;
                  own.net->two->bias[2] = 5;
                }
                const auto text = refusal<UsageError>([&] { own.model.place(); });
                EXPECT_THAT(text, AllOf(HasSubstr("parameter 'two.bias' differs between ranks"),
                                        HasSubstr("; on rank "), HasSubstr("torch::manual_seed"),
                                        HasSubstr("initial_values = \"first\"")));
                ++refused;
              },
              config_of(pp), {1});
    EXPECT_EQ(refused, 2 * pp);
  }
}

/// One rank of four has others; no rank waits for it.
TEST(InitialValues, OfSlicesAreComparedWithThoseOfTheSameSlice) {
  run_local(4,
            [&] {
              torch::manual_seed(3);
              nn::DistributedLinear net(4, 4);
              DistributedModel model(net);
              model.place();
            },
            config_of(1, 2), {1});
  int refused = 0;
  run_local(4,
            [&] {
              torch::manual_seed(3);
              nn::DistributedLinear net(4, 4);
              if (rdp_rank() == 1 && tp_rank() == 1) {
                const torch::NoGradGuard no_grad;
                net->weight.mul_(2);
              }
              DistributedModel model(net);
              EXPECT_THAT(refusal<UsageError>([&] { model.place(); }),
                          HasSubstr("parameter 'weight' differs between ranks: on rank "));
              ++refused;
            },
            config_of(1, 2), {1});
  EXPECT_EQ(refused, 4);
}

TEST(InitialValues, BecomeThoseOfTheFirstReplicaIfWished) {
  for (const int pp : {1, 2}) {
    auto config = config_of(pp);
    config.initial_values = "first";
    run_local(2 * pp,
              [&] {
                torch::manual_seed(3);
                Placed own;
                const auto expected = own.net->two->bias.detach().clone();
                if (dp_rank() == 1) {
                  const torch::NoGradGuard no_grad;
                  own.net->two->bias[2] = 5;
                }
                own.model.place();
                if (own.model.owns(own.net->two->bias)) {
                  EXPECT_TRUE(at::equal(own.net->two->bias, expected));
                }
              },
              config, {1});
  }
}

TEST(InitialValues, OfBuffersAreThoseOfTheFirstReplica) {
  for (const char* const how : {"equal", "first"}) {
    auto config = config_of(1);
    config.initial_values = how;
    run_local(2,
              [&] {
                torch::manual_seed(3);
                Placed own;
                EXPECT_EQ(own.net->scratch[0].item<int>(), rank());
                own.model.place();
                EXPECT_EQ(own.net->scratch[0].item<int>(), 0);
              },
              config, {1});
  }
}

/// Some have values, others none yet: nothing can be compared.
TEST(InitialValues, OfOneReplicaAreForAllThatHaveNone) {
  std::vector<at::Tensor> values(2);
  for (const int eager : {0, 1}) {
    run_local(2,
              [&] {
                torch::manual_seed(3 + static_cast<std::uint64_t>(rank()));
                std::optional<delay_param_initialization> delayed;
                if (rank() != eager) delayed.emplace();
                Placed own;
                own.model.place();
                values[static_cast<std::size_t>(rank())] = own.net->one->weight.detach().clone();
              },
              config_of(1), {1});
    EXPECT_TRUE(at::equal(values[0], values[1]));
  }
}

/// Nobody knows whether they are equal until they are drawn.
TEST(InitialValues, ThatAreDelayedAreThoseOfTheFirstReplica) {
  std::vector<at::Tensor> values(2);
  run_local(2,
            [&] {
              torch::manual_seed(3 + static_cast<std::uint64_t>(rank()));
              const delay_param_initialization delayed;
              Placed own;
              own.model.place();
              values[static_cast<std::size_t>(rank())] = own.net->one->weight.detach().clone();
            },
            config_of(1), {1});
  EXPECT_TRUE(at::equal(values[0], values[1]));
}

}  // namespace initial_values_test
}  // namespace smp
