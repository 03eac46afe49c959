// Hooks that send gradients as elements of a shorter type.
#include "smp/comm_hook.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace smp {
namespace comm_hook_test {

void expect_cast(CommHook& hook, c10::ScalarType travels) {
  EXPECT_TRUE(hook.is_pure());
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    const auto elements = at::linspace(-3, 3, 1001, dtype) / 7;
    const auto compressed = hook.compress(elements, {});
    ASSERT_EQ(compressed.size(), 1u);
    EXPECT_EQ(compressed[0].scalar_type(), travels);
    const auto back = hook.decompress(compressed, at::empty({1001}, dtype), {});
    EXPECT_EQ(back.scalar_type(), dtype);
    EXPECT_TRUE(at::equal(back, elements.to(travels).to(dtype)));
    EXPECT_TRUE(at::equal(hook.decompress(hook.compress(back, {}), back, {}), back)) << "again";
  }
}

TEST(CommHook, Bf16RoundsFloatsOnce) { expect_cast(*bf16_compress_hook(), at::kBFloat16); }

TEST(CommHook, Fp16RoundsFloatsOnce) { expect_cast(*fp16_compress_hook(), at::kHalf); }

TEST(CommHook, CastsLeaveShortTypesAsTheyAre) {
  for (const auto dtype : {at::kHalf, at::kBFloat16}) {
    const auto elements = at::linspace(-3, 3, 11).to(dtype);
    const auto hook = bf16_compress_hook();
    const auto compressed = hook->compress(elements, {});
    EXPECT_EQ(compressed.at(0).scalar_type(), dtype);
    EXPECT_FALSE(compressed[0].is_alias_of(elements));
    const auto back = hook->decompress(compressed, elements, {});
    EXPECT_TRUE(at::equal(back, elements));
    EXPECT_FALSE(back.is_alias_of(compressed[0])) << "others may still read what was sent";
  }
}

}  // namespace comm_hook_test
}  // namespace smp
