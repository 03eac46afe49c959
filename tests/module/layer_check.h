// tests/module/layer_check.h: a smp::nn layer against the torch::nn layer of the same name.
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>
#include <torch/utils.h>

#include <functional>
#include <memory>

#include "module/fake_handler.h"
#include "smp/codec.h"

namespace smp::test {

using torch::Tensor;
using Run = std::function<Packet()>;

template <class T>
Packet packed(const T& value) {
  Writer out;
  out.put(value);
  return std::move(out).take();
}

inline Tensor input(at::IntArrayRef shape) {
  const auto generator = at::detail::createCPUGenerator(/*seed_val=*/3);
  return torch::randn(shape, generator);
}
inline Tensor numbers(std::int64_t below, at::IntArrayRef shape) {
  const auto generator = at::detail::createCPUGenerator(/*seed_val=*/4);
  return torch::randint(below, shape, generator, torch::kLong);
}

inline Packet seeded(const Run& run) {
  torch::manual_seed(2);
  return run();
}

inline void expect_equal(const Packet& expected, const Packet& actual) {
  EXPECT_EQ(expected.bytes, actual.bytes);
  ASSERT_EQ(expected.tensors.size(), actual.tensors.size());
  for (std::size_t i = 0; i < expected.tensors.size(); ++i) {
    EXPECT_TRUE(at::equal(expected.tensors[i], actual.tensors[i])) << "tensor " << i;
  }
}

inline Tensor random_state() { return at::detail::getDefaultCPUGenerator().get_state(); }

/// Same bits in three places: plain, routed here, and routed to another rank's copy.
inline void expect_same_results(const Run& plain, const Run& routed,
                                const std::shared_ptr<torch::nn::Module>& here,
                                const std::shared_ptr<torch::nn::Module>& there) {
  const auto& base = dynamic_cast<RoutedBase&>(*here);
  EXPECT_EQ(base.smp_cannot_cross(), "");
  const auto expected = seeded(plain);
  torch::manual_seed(2);
  const auto before = random_state();
  expect_equal(expected, routed());
  EXPECT_TRUE(base.smp_draws_random() || at::equal(before, random_state()));
  for (auto& parameter : here->parameters()) parameter.set_data(torch::zeros_like(parameter));
  FakeHandler handler({here, there}, {{"", 1}});
  expect_equal(expected, seeded(routed));
  EXPECT_EQ(handler.requests.size(), 1u);
}

template <class Plain, class Routed, class Forward, class... Options>
void expect_same_layer(const Forward& forward, const Options&... options) {
  torch::manual_seed(1);
  Plain plain(options...);
  torch::manual_seed(1);
  Routed here(options...);
  torch::manual_seed(1);
  Routed there(options...);
  expect_same_results([&] { return packed(forward(*plain)); },
                      [&] { return packed(forward(*here)); }, here.ptr(), there.ptr());
}

/// LAYER(Linear, (3, 4), input({2, 3})): name, constructor arguments, arguments of forward.
#define SMP_TEST_LIST(...) __VA_OPT__(, ) __VA_ARGS__
#define LAYER(NAME, OPTIONS, ...)                                                      \
  TEST(SmpNn, NAME##EqualsTorchs) {                                                    \
    expect_same_layer<torch::nn::NAME, smp::nn::NAME>(                                 \
        [](auto& layer) { return layer.forward(__VA_ARGS__); } SMP_TEST_LIST OPTIONS); \
  }

}  // namespace smp::test
