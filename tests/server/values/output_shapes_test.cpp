// What outputs look like that do not travel.
#include "server/values/output_shapes.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace smp::server {
namespace output_shapes_test {

TEST(OutputShapes, AreThoseOfTheOutputs) {
  const std::vector<at::Tensor> outputs{at::ones({2, 3}, at::kDouble), at::ones({0, 4}),
                                        at::scalar_tensor(3, at::kLong)};
  TensorFlags flags;
  const auto shapes = shapes_of(take_shapes(outputs, {true, false, false}), flags);
  ASSERT_EQ(shapes.size(), 3u);
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    EXPECT_EQ(shapes[i].sizes(), outputs[i].sizes());
    EXPECT_EQ(shapes[i].scalar_type(), outputs[i].scalar_type());
  }
  EXPECT_EQ(flags, (TensorFlags{true, false, false}));
  EXPECT_LE(shapes[0].storage().nbytes(), sizeof(double)) << "no memory for the elements";
}

TEST(OutputShapes, OfNothingAreNothing) {
  TensorFlags flags;
  EXPECT_TRUE(take_shapes({}, {}).empty());
  EXPECT_TRUE(shapes_of({}, flags).empty());
}

}  // namespace output_shapes_test
}  // namespace smp::server
