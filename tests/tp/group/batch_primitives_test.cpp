// What modules of both kinds of batches are made of: values, gradients and what is sent, with own
// samples and with a prescaled batch.
#include "smp/tp/batch_primitives.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tp/layer_comparison.h"

namespace smp::tp {
namespace batch_primitives_test {

using Primitive = std::function<at::Tensor(const at::Tensor&)>;

constexpr std::int64_t kRows = 16, kWidth = 8;

struct Sent {
  std::uint64_t forward = 0, backward = 0;  // bytes of tensors, by rank 0
  bool operator==(const Sent&) const = default;
  friend std::ostream& operator<<(std::ostream& out, const Sent& sent) {
    return out << sent.forward << " bytes in forward, " << sent.backward << " in backward";
  }
};

Sent sent_by(const Primitive& primitive, int size, Batches batches) {
  d2d::SimulatedJob job(size);
  Sent sent;
  const auto bytes = [&] { return job.channel(0).counters().tensor_bytes_sent; };
  on_group(
      job, size,
      [&](int rank) {
        const auto leaf = at::ones({kRows, 100 * kWidth}, at::kDouble).requires_grad_();
        const auto output = primitive(leaf);
        if (rank == 0) sent.forward = bytes();
        backward(output, at::ones_like(output));
        if (rank == 0) sent.backward = bytes() - sent.forward;
      },
      batches);
  return sent;
}

TEST(BatchPrimitives, SendWhatTheTableSays) {
  for (const int size : {2, 4}) {
    const auto others = static_cast<std::uint64_t>(size - 1), n = others + 1;
    const std::uint64_t bytes = kRows * 100 * kWidth * sizeof(double);
    const auto part = others * bytes / n, all = others * bytes;
    const auto sent = [&](const Primitive& primitive, Batches batches) {
      return sent_by(primitive, size, batches);
    };
    const auto slices = [](const auto& x) { return slices_of_batch_for_tp(x, -1); };
    const auto joined = [](const auto& x) { return batch_of_slices_for_tp(x, -1); };
    EXPECT_EQ(sent(slices, Batches::kOwn), (Sent{part, part}));
    EXPECT_EQ(sent(slices, Batches::kPrescaled), (Sent{0, part}));
    EXPECT_EQ(sent(joined, Batches::kOwn), (Sent{part, part}));
    EXPECT_EQ(sent(joined, Batches::kPrescaled), (Sent{all, 0}));
    EXPECT_EQ(sent(whole_batch_for_tp, Batches::kOwn), (Sent{all, all}));
    EXPECT_EQ(sent(whole_batch_for_tp, Batches::kPrescaled), (Sent{0, 2 * part}));
    EXPECT_EQ(sent(batch_of_sums_for_tp, Batches::kOwn), (Sent{part, part}));
    EXPECT_EQ(sent(batch_of_sums_for_tp, Batches::kPrescaled), (Sent{2 * part, 0}));
  }
}

/// x -> tanh(x A) B, with A cut along its columns and B along its rows.
struct TwoProductsImpl : DistributedModule {
  TwoProductsImpl() {
    a = register_slice("a", numbers(1, {kWidth, kWidth})[0], 1);
    b = register_slice("b", numbers(1, {kWidth, kWidth})[0] * 2, 0);
  }
  at::Tensor forward(const at::Tensor& x) {
    return batch_of_sums_for_tp(at::matmul(at::tanh(at::matmul(whole_batch_for_tp(x), a)), b));
  }
  at::Tensor a, b;
};

/// x -> x * c, channel by channel.
struct ScaledImpl : DistributedModule {
  ScaledImpl() { c = register_slice("c", numbers(1, {kWidth})[0], 0); }
  at::Tensor forward(const at::Tensor& x) {
    return batch_of_slices_for_tp(slices_of_batch_for_tp(x, -1) * c, -1);
  }
  at::Tensor c;
};

struct PlainTwoProductsImpl : torch::nn::Module {
  PlainTwoProductsImpl()
      : a(register_parameter("a", numbers(1, {kWidth, kWidth})[0])),
        b(register_parameter("b", numbers(1, {kWidth, kWidth})[0] * 2)) {}
  at::Tensor forward(const at::Tensor& x) { return at::matmul(at::tanh(at::matmul(x, a)), b); }
  at::Tensor a, b;
};

struct PlainScaledImpl : torch::nn::Module {
  PlainScaledImpl() : c(register_parameter("c", numbers(1, {kWidth})[0])) {}
  at::Tensor forward(const at::Tensor& x) { return x * c; }
  at::Tensor c;
};

TEST(BatchPrimitives, MakeModulesThatAreRightWithBothKindsOfBatches) {
  for (const int size : {1, 2, 4}) {
    const auto samples = numbers(size, {3, 2, kWidth});
    expect_as_plain([] { return std::make_shared<PlainTwoProductsImpl>(); },
                    [] { return std::make_shared<TwoProductsImpl>(); }, samples, 1e-12);
    expect_as_plain([] { return std::make_shared<PlainScaledImpl>(); },
                    [] { return std::make_shared<ScaledImpl>(); }, samples, 1e-12);
  }
}

}  // namespace batch_primitives_test
}  // namespace smp::tp
