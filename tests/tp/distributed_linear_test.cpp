// DistributedLinear equals torch::nn::Linear: constructor grid, shapes, refusals.
#include "smp/tp/distributed_linear.h"

#include <gmock/gmock.h>
#include <torch/nn/modules/linear.h>

#include <sstream>

#include "smp/error.h"
#include "support/refusal.h"
#include "tp/layer_comparison.h"

namespace smp::tp {
namespace distributed_linear_test {

using testing::AllOf;
using testing::HasSubstr;

TEST(DistributedLinear, EqualsLinear) {
  for (const int size : {1, 2, 4}) {
    for (const bool bias : {false, true}) {
      for (const auto& shape : std::vector<std::vector<std::int64_t>>{
               {3, 8}, {1, 8}, {0, 8}, {2, 5, 8}, {2, 1, 3, 8}}) {
        const auto options = torch::nn::LinearOptions(8, 5).bias(bias);
        SCOPED_TRACE(testing::Message() << at::IntArrayRef(shape) << (bias ? " with" : " without"));
        expect_as_plain([&] { return torch::nn::Linear(options); },
                        [&] { return nn::DistributedLinear(options); }, numbers(size, shape),
                        1e-12);
      }
    }
  }
}

TEST(DistributedLinear, RefusesSizesThatDoNotFit) {
  d2d::SimulatedJob job(4);
  on_group(job, 4, [](int) {
    EXPECT_THAT(
        refusal<UsageError>([] { nn::DistributedLinear(6, 8); }),
        AllOf(HasSubstr("DistributedLinear"), HasSubstr("'weight', shape [8, 6]"),
              HasSubstr("dimension 1 for 4 tensor-parallel ranks"), HasSubstr("choose a size")));
    nn::DistributedLinear layer(8, 3);
    EXPECT_THAT(refusal<UsageError>([&] {
                  layer(at::ones({2, 4}));
                }),
                AllOf(HasSubstr("input is [2, 4], expected [batch, .., 8]"),
                      HasSubstr("check in_features")));
    EXPECT_THROW(layer(at::ones({8})), UsageError) << "no batch";
  });
}

TEST(DistributedLinear, NeedsASession) {
  EXPECT_THAT(refusal<UsageError>([] { nn::DistributedLinear(4, 4); }),
              HasSubstr("call smp::init first"));
}

TEST(DistributedLinear, PrintsItself) {
  d2d::SimulatedJob job(1);
  on_group(job, 1, [](int) {
    std::ostringstream text;
    text << nn::DistributedLinear(4, 3);
    EXPECT_THAT(text.str(), HasSubstr("DistributedLinear(in_features=4, out_features=3"));
  });
}

}  // namespace distributed_linear_test
}  // namespace smp::tp
