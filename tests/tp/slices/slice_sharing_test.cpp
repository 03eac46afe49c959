// Slices that an ordinary module has as a parameter, too, are refused; others may be shared.
#include "tp/slices/slice_sharing.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include "smp/smp.h"
#include "smp/tp.h"
#include "support/refusal.h"

namespace smp::tp {
namespace slice_sharing_test {

using testing::AllOf;
using testing::HasSubstr;

/// Reads and scores by one table, as is done with an ordinary one.
struct TiedTableImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return torch::linear(table(x), tied); }
  nn::DistributedEmbedding table = register_module("table", nn::DistributedEmbedding(8, 4));
  at::Tensor tied = register_parameter("tied", table->weight);
};
SMP_MODULE(TiedTable);

/// Two paths to one distributed module.
struct CalledTwiceImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return second(first(x)); }
  nn::DistributedLinear first = register_module("first", nn::DistributedLinear(4, 4));
  nn::DistributedLinear second = register_module("second", first);
};
SMP_MODULE(CalledTwice);

struct InnerImpl : torch::nn::Module {
  explicit InnerImpl(const at::Tensor& slice) : own(register_parameter("own", slice)) {}
  at::Tensor own;
};
TORCH_MODULE(Inner);

/// Knows that what it gives to a module below is a slice.
struct OuterImpl : DistributedModule {
  at::Tensor forward(const at::Tensor& x) { return x * inner->own.sum(); }
  at::Tensor weight = register_slice("weight", torch::arange(8.), 0);
  Inner inner = register_module("inner", Inner(weight));
};
SMP_MODULE(Outer);

/// What each rank is told that wraps a `Net`.
template <class Net>
std::vector<std::string> told(int tp) {
  Config config;
  config.tensor_parallel_degree = tp;
  std::vector<std::string> ends(2);
  run_local(2,
            [&] {
              Net net;
              ends[static_cast<std::size_t>(rank())] =
                  refusal<UsageError>([&] { const DistributedModel model(net); });
            },
            config, {1});
  return ends;
}

TEST(SliceSharing, IsRefusedWhereASliceWouldBeTakenForTheWhole) {
  EXPECT_THAT(
      told<TiedTable>(2),
      testing::Each(AllOf(HasSubstr("parameter 'tied' is the same tensor as 'table.weight'"),
                          HasSubstr("each of 2 tensor-parallel ranks holds a slice"),
                          HasSubstr("smp::nn::DistributedVocabulary"))));
  EXPECT_THAT(told<TiedTable>(2)[1], HasSubstr("rank 1: "));
  EXPECT_THAT(told<TiedTable>(1), testing::Each("accepted"));
}

TEST(SliceSharing, IsFineBetweenWhatIsDistributed) {
  EXPECT_THAT(told<CalledTwice>(2), testing::Each("accepted"));
  EXPECT_THAT(told<Outer>(2), testing::Each("accepted"));
}

}  // namespace slice_sharing_test
}  // namespace smp::tp
