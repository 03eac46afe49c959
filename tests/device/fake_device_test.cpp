// device/fake_device_test.cpp: the double computes what the CPU does, and keeps the host
// out.
#include "support/fake_device.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace smp::support {
namespace {

/// Same elements, strides and type.
::testing::AssertionResult same(const at::Tensor& device, const at::Tensor& cpu) {
  if (!device.defined() || !cpu.defined()) {
    return device.defined() == cpu.defined() ? ::testing::AssertionSuccess()
                                             : ::testing::AssertionFailure() << "one is undefined";
  }
  if (device.device() != fake_device()) {
    return ::testing::AssertionFailure() << "it is on " << device.device();
  }
  if (device.dtype() != cpu.dtype() || device.sizes() != cpu.sizes() ||
      device.strides() != cpu.strides()) {
    return ::testing::AssertionFailure()
           << device.toString() << device.sizes() << device.strides() << " is not "
           << cpu.toString() << cpu.sizes() << cpu.strides();
  }
  if (device.to(at::kCPU).equal(cpu)) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << device.to(at::kCPU) << "\nis not\n" << cpu;
}

/// Handed out as const by LibTorch.
at::Generator& default_generator() {
  return const_cast<at::Generator&>(at::globalContext().defaultGenerator(fake_device()));
}

void seed(std::uint64_t value) { default_generator().set_current_seed(value); }

/// What `compute` gives for the same arguments on both devices, which must be the same.
void expect_same(const std::vector<at::Tensor>& arguments,
                 const std::function<at::Tensor(std::vector<at::Tensor>)>& compute) {
  std::vector<at::Tensor> on_cpu, on_device;
  for (const auto& argument : arguments) {
    on_cpu.push_back(argument.clone());
    on_device.push_back(argument.to(fake_device()));
  }
  EXPECT_TRUE(same(compute(on_device), compute(on_cpu)));
  for (std::size_t i = 0; i < arguments.size(); ++i) EXPECT_TRUE(same(on_device[i], on_cpu[i]));
}

TEST(FakeDevice, HasANameAndIsTheAccelerator) {
  EXPECT_EQ(fake_device().str(), "fake:0");
  EXPECT_EQ(c10::Device("fake:0"), fake_device());
  EXPECT_EQ(at::getAccelerator(), fake_device().type());
}

TEST(FakeDevice, TensorsGoThereAndBack) {
  torch::manual_seed(1);
  const auto real = at::randn({4, 6});
  for (const auto& tensor :
       {real, real.t(), real.slice(1, 1, 6, 2), at::randn({}), at::empty({0, 3}), real > 0,
        real.to(at::kBFloat16), at::arange(7), at::randn({3, 2}, at::kComplexFloat),
        at::randn({3}, at::kComplexFloat).conj(), real[0].expand({5, 6}),
        at::randn({2, 3, 4, 4}).contiguous(at::MemoryFormat::ChannelsLast)}) {
    const auto there = tensor.to(fake_device());
    EXPECT_EQ(there.device(), fake_device());
    EXPECT_EQ(there.strides(), tensor.clone().strides());
    const auto back = there.to(at::kCPU);
    EXPECT_TRUE(back.device().is_cpu());
    EXPECT_EQ(back.dtype(), tensor.dtype());
    EXPECT_TRUE(back.equal(tensor)) << back << tensor;
    EXPECT_TRUE(there.to(at::kCPU, /*non_blocking=*/true).equal(tensor));
  }
}

TEST(FakeDevice, CopiesBetweenAnyStrides) {
  const auto cpu = at::randn({6, 4});
  auto device = at::zeros({4, 6}, fake_device());
  device.t().copy_(cpu);
  EXPECT_TRUE(device.t().to(at::kCPU).equal(cpu));
  auto twin = at::empty({6, 4}, fake_device());
  twin.copy_(device.t());
  EXPECT_TRUE(same(twin, cpu));
  auto back = at::zeros({6, 8});
  back.slice(1, 0, 8, 2).copy_(twin);
  EXPECT_TRUE(back.slice(1, 0, 8, 2).equal(cpu));
  auto halves = at::empty({6, 4}, at::TensorOptions(fake_device()).dtype(at::kHalf));
  halves.copy_(cpu);
  EXPECT_TRUE(same(halves, cpu.to(at::kHalf)));
}

TEST(FakeDeviceDeathTest, HostCodeDiesThatReadsItsMemory) {
  const auto tensor = at::ones({4}, fake_device());
  EXPECT_DEATH({ std::printf("%f\n", tensor.data_ptr<float>()[2]); }, "");
  EXPECT_DEATH({ tensor.data_ptr<float>()[0] = 1; }, "");
}

TEST(FakeDevice, TestsMayLookBehindTheScenes) {
  const auto tensor = at::arange(5, at::TensorOptions(fake_device()).dtype(at::kLong));
  const auto* const view = static_cast<const std::int64_t*>(host_view(tensor.const_data_ptr()));
  EXPECT_EQ(view[3], 3);
  EXPECT_EQ(host_view(nullptr), nullptr);
  EXPECT_EQ(host_view(&view), &view);
}

TEST(FakeDevice, MemoryIsUsedAgainAndPoisoned) {
  const auto before = fake_live_bytes();
  const void* freed = nullptr;
  {
    const auto tensor = at::zeros({1000}, fake_device());
    freed = tensor.const_data_ptr();
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(freed) % 512, 0);
    EXPECT_EQ(fake_live_bytes(), before + 4096);
  }
  EXPECT_EQ(fake_live_bytes(), before);
  EXPECT_EQ(static_cast<const unsigned char*>(host_view(freed))[2000], 0xEE);
  EXPECT_EQ(at::empty({1000}, fake_device()).const_data_ptr(), freed);
}

TEST(FakeDevice, FreedNeighboursAreJoined) {
  constexpr std::int64_t kMebibyte = 1 << 20;
  const at::TensorOptions bytes(at::TensorOptions(fake_device()).dtype(at::kByte));
  std::vector<at::Tensor> pieces;
  for (int i = 0; i < 8; ++i) pieces.push_back(at::empty({60 * kMebibyte}, bytes));
  EXPECT_THROW(at::empty({60 * kMebibyte}, bytes), c10::Error);
  for (const int i : {1, 5, 3, 4, 2}) pieces[static_cast<std::size_t>(i)].reset();
  EXPECT_NO_THROW(at::empty({300 * kMebibyte}, bytes));
}

TEST(FakeDevice, CountsCopiesApartFromKernels) {
  const auto before = fake_counters();
  auto tensor = at::ones({3}).to(fake_device());
  tensor = (tensor + 1).clone();
  EXPECT_EQ(fake_counters().to_device, before.to_device + 1);
  EXPECT_EQ(fake_counters().to_host, before.to_host);
  EXPECT_GE(fake_counters().kernels, before.kernels + 2);
  EXPECT_EQ(tensor.sum().item<float>(), 6);
  tensor.cpu();
  EXPECT_EQ(fake_counters().to_host, before.to_host + 2);
}

TEST(FakeDevice, OperatorsComputeWhatTheCpuDoes) {
  const auto x = at::randn({4, 6}), y = at::randn({4, 6});
  using Tensors = std::vector<at::Tensor>;
  expect_same({x, y}, [](Tensors t) { return t[0].clone().add_(t[1], 2).detach(); });
  expect_same({x, y}, [](Tensors t) { return t[0].copy_(t[1]); });
  expect_same({x, y}, [](Tensors t) { return at::add_out(t[0], t[0], t[1]); });
  expect_same({x, y}, [](Tensors t) { return at::cat({t[0], t[1].narrow(1, 2, 3)}, 1); });
  expect_same({x, y}, [](Tensors t) { return at::stack({t[0], t[1]}).flatten(1); });
  expect_same({x}, [](Tensors t) { return t[0].narrow(0, 1, 2).mul_(3).sum(1); });
  expect_same({x}, [](Tensors t) { return t[0][1].expand({3, 6}).contiguous(); });
  expect_same({x}, [](Tensors t) { return t[0].t().contiguous().view({-1, 3}); });
  expect_same({x}, [](Tensors t) { return 1 - t[0]; });
  expect_same({x}, [](Tensors t) { return (2 / t[0]).clamp(-1, 1).round(); });
  expect_same({x}, [](Tensors t) { return std::get<0>(t[0].sort(1)); });
  expect_same({x}, [](Tensors t) { return at::where(t[0] > 0, t[0], 0); });
  expect_same({x}, [](Tensors t) { return t[0].masked_fill(t[0] > 0, 7).nonzero(); });
  expect_same({x},
              [](Tensors t) { return t[0].to(at::kBFloat16).matmul(t[0].t().to(at::kBFloat16)); });
  expect_same({x}, [](Tensors t) { return t[0].unfold(1, 2, 2).zero_(); });
  expect_same({x, y}, [](Tensors t) { return at::complex(t[0], t[1]).conj().mul(2).abs(); });
  expect_same({x, y}, [](Tensors t) { return at::view_as_real(at::complex(t[0], t[1])).mul_(2); });
  expect_same({x, at::tensor({3, 1})}, [](Tensors t) { return t[0].index({t[1]}); });
  expect_same({x, at::tensor({3, 1}), y.slice(0, 0, 2)}, [](Tensors t) {
    return t[0]
        .index_put({t[1]}, t[2])
        .index_put_({t[1]}, at::scalar_tensor(2.5), /*accumulate=*/true);
  });
}

TEST(FakeDevice, ShapesAndStoragesChange) {
  const auto x = at::randn({4, 6});
  using Tensors = std::vector<at::Tensor>;
  const auto none = at::empty({0});
  expect_same({x, none}, [](Tensors t) { return at::mul_out(t[1], t[0], 2); });
  expect_same({x, none}, [](Tensors t) { return at::cat_out(t[1], {t[0], t[0]}); });
  expect_same({x}, [](Tensors t) { return t[0].clone().resize_({8, 6}).narrow(0, 0, 4); });
  expect_same({x}, [](Tensors t) { return at::empty({0}, t[0].options()).set_(t[0].t()); });
  expect_same({x}, [](Tensors t) { return at::empty({0}, t[0].options()).set_(t[0].storage()); });
  expect_same({x}, [](Tensors t) { return t[0].clone().set_(); });
  expect_same({x, x}, [](Tensors t) {
    t[0].set_data(t[1] + 1);
    return t[0].as_strided({2, 2}, {6, 1}, 3);
  });
}

TEST(FakeDevice, ViewsShareMemory) {
  auto x = at::zeros({4, 6}, fake_device());
  x.view({2, 12}).unfold(1, 3, 3)[1][3].fill_(5);
  EXPECT_EQ(x.sum().item<float>(), 15);
  EXPECT_TRUE(x.unfold(1, 2, 1).is_view());
  EXPECT_TRUE(x.unfold(1, 2, 1).is_alias_of(x));
  EXPECT_FALSE((x + 1).is_alias_of(x));
}

TEST(FakeDevice, RefusesTensorsOfTheHost) {
  auto x = at::ones({2}, fake_device());
  EXPECT_THROW(x + at::ones({2}), c10::Error);
  EXPECT_THROW(at::cat({x, at::ones({2})}), c10::Error);
  EXPECT_THROW(at::add_out(x, x, at::ones({2})), c10::Error);
  EXPECT_TRUE(same(x + at::scalar_tensor(1.0), at::full({2}, 2.0)));
  EXPECT_TRUE(same(at::scalar_tensor(1.0) + x, at::full({2}, 2.0)));
  EXPECT_TRUE(same(x.index({at::tensor({1})}), at::ones({1})));
}

TEST(FakeDevice, RandomNumbersAreThoseOfItsOwnGenerator) {
  const at::TensorOptions options(fake_device());
  const auto draw = [&]() -> std::vector<at::Tensor> {
    const auto x = at::ones({4, 9}, options);
    return {at::dropout(x, 0.5, true),
            at::empty({9}, options).uniform_(),
            at::randn({9}, options),
            at::bernoulli(x / 2),
            at::randperm(9, options.dtype(at::kLong)),
            at::feature_dropout(x, 0.5, true)};
  };
  const auto host = at::detail::getDefaultCPUGenerator().get_state();
  seed(3);
  const auto first = draw(), second = draw();
  seed(3);
  const auto again = draw();
  for (std::size_t i = 0; i < first.size(); ++i) {
    EXPECT_TRUE(same(again[i], first[i].cpu())) << i;
    EXPECT_FALSE(second[i].equal(first[i])) << i;
  }
  EXPECT_TRUE(at::detail::getDefaultCPUGenerator().get_state().equal(host));
}

TEST(FakeDevice, ItsGeneratorCanBeExchanged) {
  auto& current = default_generator();
  const auto x = at::ones({64}, fake_device());
  seed(5);
  auto other = current.clone();
  EXPECT_EQ(other.device(), fake_device());
  other.set_current_seed(6);
  auto previous = std::exchange(current, other);
  const auto under_other = at::dropout(x, 0.5, true);
  current = previous;
  const auto under_first = at::dropout(x, 0.5, true);
  seed(5);
  EXPECT_TRUE(same(under_first, at::dropout(x, 0.5, true).cpu()));
  seed(6);
  EXPECT_TRUE(same(under_other, at::dropout(x, 0.5, true).cpu()));
}

/// Most kinds of layers of a language model.
struct ModelImpl : torch::nn::Module {
  ModelImpl() {
    register_module("embedding", embedding);
    register_module("convolution", convolution);
    register_module("qkv", qkv);
    register_module("norm", norm);
    register_module("head", head);
  }
  at::Tensor forward(const at::Tensor& tokens) {
    auto x = embedding(tokens);
    x = x + convolution(x.transpose(1, 2)).transpose(1, 2);
    const auto parts = qkv(norm(x)).view({x.size(0), x.size(1), 3, 4, 4}).unbind(2);
    const auto q = parts[0].transpose(1, 2), k = parts[1].transpose(1, 2);
    const auto mask = at::ones({x.size(1), x.size(1)}, x.options()).tril().eq(0);
    const auto scores = (q.matmul(k.transpose(-2, -1)) / 2).masked_fill(mask, -1e9).softmax(-1);
    const auto mixed = scores.matmul(parts[2].transpose(1, 2)).transpose(1, 2).flatten(2);
    return head(torch::gelu(x + mixed));
  }

  torch::nn::Embedding embedding{11, 16};
  torch::nn::Conv1d convolution{torch::nn::Conv1dOptions(16, 16, 3).padding(1)};
  torch::nn::Linear qkv{16, 48};
  torch::nn::LayerNorm norm{torch::nn::LayerNormOptions({16})};
  torch::nn::Linear head{16, 11};
};
TORCH_MODULE(Model);

using MakeOptimizer =
    std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<at::Tensor>)>;

struct Trained {
  std::vector<at::Tensor> losses, gradients, parameters;
};

Trained train(c10::Device device, const MakeOptimizer& make) {
  torch::manual_seed(7);
  Model model;
  const auto tokens = at::randint(11, {3, 9}, at::kLong).to(device);
  model->to(device);
  const auto optimizer = make(model->parameters());
  Trained trained;
  for (int step = 0; step < 3; ++step) {
    optimizer->zero_grad(/*set_to_none=*/step == 1);
    const auto logits = model(tokens.narrow(1, 0, 8));
    const auto loss = torch::nn::functional::cross_entropy(logits.flatten(0, 1),
                                                           tokens.narrow(1, 1, 8).flatten());
    loss.backward();
    torch::nn::utils::clip_grad_norm_(model->parameters(), 1.0);
    optimizer->step();
    trained.losses.push_back(loss.detach());
  }
  for (const auto& parameter : model->parameters()) {
    trained.gradients.push_back(parameter.grad());
    trained.parameters.push_back(parameter.detach());
  }
  return trained;
}

void expect_same_training(const MakeOptimizer& make) {
  const auto before = fake_live_bytes();
  {
    const auto device = train(fake_device(), make), cpu = train(at::kCPU, make);
    for (const auto part : {&Trained::losses, &Trained::gradients, &Trained::parameters}) {
      ASSERT_EQ((device.*part).size(), (cpu.*part).size());
      for (std::size_t i = 0; i < (cpu.*part).size(); ++i) {
        EXPECT_TRUE(same((device.*part)[i], (cpu.*part)[i])) << i;
      }
    }
    EXPECT_LT(cpu.losses[2].item<float>(), cpu.losses[0].item<float>());
    EXPECT_GT(fake_live_bytes(), before);
  }
  EXPECT_EQ(fake_live_bytes(), before);
}

TEST(FakeDevice, TrainsWithMomentumAsTheCpuDoes) {
  expect_same_training([](std::vector<at::Tensor> parameters) {
    return std::make_unique<torch::optim::SGD>(std::move(parameters),
                                               torch::optim::SGDOptions(0.1).momentum(0.9));
  });
}

TEST(FakeDevice, TrainsWithAdamAsTheCpuDoes) {
  expect_same_training([](std::vector<at::Tensor> parameters) {
    return std::make_unique<torch::optim::AdamW>(std::move(parameters),
                                                 torch::optim::AdamWOptions(0.01));
  });
}

/// Forward and backward pass of a module of one input, on both devices.
template <class Module>
void expect_same_passes(Module module, const at::Tensor& input) {
  Module twin = std::dynamic_pointer_cast<typename Module::Impl>(module->clone());
  twin->to(fake_device());
  auto x = input.clone().requires_grad_(), y = input.to(fake_device()).requires_grad_();
  const auto cpu = module(x), device = twin(y);
  EXPECT_TRUE(same(device, cpu));
  cpu.square().sum().backward();
  device.square().sum().backward();
  EXPECT_TRUE(same(y.grad(), x.grad()));
  const auto on_cpu = module->parameters(), on_device = twin->parameters();
  for (std::size_t i = 0; i < on_cpu.size(); ++i) {
    EXPECT_TRUE(same(on_device[i].grad(), on_cpu[i].grad())) << i;
  }
  for (std::size_t i = 0; i < module->buffers().size(); ++i) {
    EXPECT_TRUE(same(twin->buffers()[i], module->buffers()[i])) << i;
  }
}

TEST(FakeDevice, OtherLayersComputeWhatTheCpuDoes) {
  using namespace torch::nn;
  const auto image = at::randn({2, 4, 8, 8});
  expect_same_passes(Conv2d(Conv2dOptions(4, 6, 3).stride(2)), image);
  expect_same_passes(ConvTranspose2d(ConvTranspose2dOptions(4, 6, 3)), image);
  expect_same_passes(BatchNorm2d(4), image);
  expect_same_passes(GroupNorm(GroupNormOptions(2, 4)), image);
  expect_same_passes(MaxPool2d(2), image);
  expect_same_passes(AdaptiveAvgPool2d(2), image);
  expect_same_passes(Upsample(UpsampleOptions().scale_factor(std::vector<double>{2, 2})), image);
  expect_same_passes(SiLU(), image);
  expect_same_passes(Mish(), image);
  expect_same_passes(LogSoftmax(1), image);
}

TEST(FakeDevice, AttentionOfLibTorchRuns) {
  const auto make = [](c10::Device device) {
    torch::manual_seed(2);
    return at::randn({2, 4, 5, 8}).to(device).requires_grad_();
  };
  const auto x = make(at::kCPU), y = make(fake_device());
  at::scaled_dot_product_attention(x, x, x, {}, 0, true).square().sum().backward();
  at::scaled_dot_product_attention(y, y, y, {}, 0, true).square().sum().backward();
  EXPECT_TRUE(at::allclose(y.grad().cpu(), x.grad(), 1e-4, 1e-5));
}

/// Gradients of what a recurrent layer makes of its input: those of the input and of its weights.
template <class Layer>
std::vector<at::Tensor> recurrent_gradients(c10::Device device) {
  torch::manual_seed(4);
  Layer layer(5, 6);
  const auto input = at::randn({3, 2, 5}).to(device).requires_grad_();
  layer->to(device);
  const auto output = std::get<0>(layer(input));
  output.square().sum().backward();
  std::vector<at::Tensor> gradients{output.detach(), input.grad()};
  for (const auto& parameter : layer->parameters()) gradients.push_back(parameter.grad());
  return gradients;
}

TEST(FakeDevice, RecurrentLayersRun) {
  for (const auto gradients :
       {&recurrent_gradients<torch::nn::LSTM>, &recurrent_gradients<torch::nn::GRU>}) {
    const auto cpu = gradients(at::kCPU), device = gradients(fake_device());
    for (std::size_t i = 0; i < cpu.size(); ++i) {
      EXPECT_TRUE(at::allclose(device[i].cpu(), cpu[i], 1e-4, 1e-6)) << i;
    }
  }
}

TEST(FakeDevice, DropoutIsThatOfTheCpuWithTheSameSeed) {
  const auto x = at::randn({4, 9});
  torch::manual_seed(1);
  const auto device = at::dropout(x.to(fake_device()), 0.5, true), cpu = at::dropout(x, 0.5, true);
  EXPECT_TRUE(same(device, cpu));
}

TEST(FakeDevice, AGraphMayCrossDevices) {
  const auto x = at::randn({4}).to(fake_device()).requires_grad_();
  (((x * 2).cpu() * 3).to(fake_device()) + x).sum().backward();
  EXPECT_TRUE(same(x.grad(), at::full({4}, 7.0)));
}

TEST(FakeDevice, TensorsAreSavedAndLoaded) {
  const auto x = at::randn({3, 4});
  std::stringstream file;
  torch::save(x.to(fake_device()), file);
  at::Tensor loaded;
  torch::load(loaded, file, fake_device());
  EXPECT_TRUE(same(loaded, x));
}

TEST(FakeDevice, WorksWithoutGradientsAndInInferenceMode) {
  Model model;
  model->to(fake_device());
  const auto tokens = at::randint(11, {3, 9}, at::kLong).to(fake_device());
  const auto expected = model(tokens).detach();
  {
    const torch::NoGradGuard guard;
    EXPECT_TRUE(model(tokens).equal(expected));
  }
  const c10::InferenceMode guard;
  EXPECT_TRUE(model(tokens).equal(expected));
  EXPECT_TRUE(model(tokens).is_inference());
}

}  // namespace
}  // namespace smp::support
