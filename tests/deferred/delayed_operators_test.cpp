// What constructors do besides making and filling tensors: operators that need values, write what
// they do not say, or fail; threads; generators that are looked at.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <torch/library.h>
#include <torch/torch.h>

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "deferred/delayed_build.h"
#include "deferred/meta_scope.h"
#include "smp/error.h"

namespace smp::deferred {
namespace delayed_operators_test {

using testing::AllOf;
using testing::HasSubstr;

/// A constructor that registers what `compute` gives, between two draws.
auto registering(const std::function<Tensor()>& compute) {
  return custom([compute](Custom& self) {
    self.register_parameter("before", torch::randn({20}));
    self.register_buffer("made", compute());
    self.register_parameter("after", torch::randn({20}));
  });
}

std::string refusal(const std::function<void()>& use) {
  try {
    use();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was refused";
}

TEST(DelayedOperators, ThatNeedValuesGetThem) {
  for (const auto& compute : std::vector<std::function<Tensor()>>{
           [] { return std::get<0>(torch::rand({8}).cummax(0)); },
           [] { return std::get<1>(torch::rand({8}).cummin(0)); },
           [] { return torch::tril_indices(4, 5); }, [] { return torch::triu_indices(4, 5, 1); },
           [] { return torch::multinomial(torch::rand({6}), 3); },
           [] { return torch::rrelu(torch::randn({6}), .1, .3, true); },
           [] {
             return torch::pdist(torch::rand({4, 3}));
           },
           [] {
             return torch::linalg_inv(torch::rand({3, 3}) + torch::eye(3));
           },
           [] {
             return torch::rand({3, 3}).to_sparse().to_dense();
           },
           [] {
             return torch::sparse_coo_tensor(torch::zeros({2, 3}, torch::kLong), torch::rand({3}),
                                             {4, 4})
                 .to_dense();
           },
           [] {
             return std::get<0>(torch::embedding_bag(torch::rand({6, 6}), torch::arange(5),
                                                     torch::tensor({0, 3})));
           },
           [] {
             return torch::segment_reduce(torch::rand({8}), "sum", torch::tensor({3, 5}));
           },
           [] { return torch::one_hot(torch::randint(4, {5})); },
           [] { return torch::empty({5}).bernoulli_(torch::rand({5})); },
           [] { return torch::rand({9}).masked_select(torch::rand({9}) > .5); },
           [] {
             return torch::quantize_per_tensor(torch::rand({5}), .1, 3, torch::kQUInt8)
                 .dequantize();
           },
           [] { return torch::view_as_real(torch::randn({4}, torch::kComplexFloat) * 2).clone(); },
           [] {
             auto sum = torch::zeros({4});
             return at::add_out(sum, torch::rand({4}), torch::ones({4}));
           }}) {
    expect_same_bits(registering(compute), /*all_delayed=*/false);
  }
}

TEST(DelayedOperators, ThatWriteWhatTheyDoNotNameKeepIt) {
  const auto build = custom([](Custom& self) {
    auto norm = nn::BatchNorm1d(4);
    self.register_module("norm", norm);
    norm->forward(torch::randn({6, 4}));
    norm->forward(torch::randn({6, 4}) * 3);
    norm->eval();
    self.register_buffer("output", norm->forward(torch::randn({2, 4})).detach());
  });
  expect_same_bits(build, /*all_delayed=*/false);
  EXPECT_TRUE(is_delayed(build_delayed(build)->named_buffers()["norm.running_mean"]));
}

/// Of a program's own, with a schema that tells nothing of what it writes.
TORCH_LIBRARY_FRAGMENT(smp_delayed_operators_test, library) {
  library.def("count_up(Tensor counter, Tensor x) -> Tensor");
  library.impl("count_up", c10::DispatchKey::CPU, [](const Tensor& counter, const Tensor& x) {
    counter.data_ptr<float>()[0] += x.data_ptr<float>()[0];
    return torch::rand({3}) + counter;
  });
}

TEST(DelayedOperators, OfTheProgramAreRunOnValues) {
  const auto count_up = [](const Tensor& counter, const Tensor& x) {
    static const auto op = c10::Dispatcher::singleton()
                               .findSchemaOrThrow("smp_delayed_operators_test::count_up", "")
                               .typed<Tensor(const Tensor&, const Tensor&)>();
    return op.call(counter, x);
  };
  expect_same_bits(custom([&](Custom& self) {
                     const auto counter = torch::zeros({3});
                     for (int i = 0; i < 3; ++i) {
                       self.register_buffer("made" + std::to_string(i),
                                            count_up(counter, torch::rand({2})));
                     }
                     self.register_buffer("counter", counter);
                   }),
                   /*all_delayed=*/false);
}

TEST(DelayedOperators, FailWhereTheyWouldHaveFailed) {
  expect_same_bits(
      custom([](Custom& self) {
        auto matrix = torch::rand({3, 3});
        try {
          torch::linalg_cholesky(matrix - 1);
        } catch (const c10::Error&) {
          matrix = torch::eye(3);
        }
        self.register_buffer("matrix", torch::linalg_cholesky(matrix));
        EXPECT_THROW(torch::rand({2}).as_strided({5}, {1}), c10::Error);
        EXPECT_THROW(torch::rand({1}).expand({4}).add_(1), c10::Error);
        EXPECT_THROW(torch::rand({2, 2}).matmul(torch::rand({2, 2}, torch::kDouble)), c10::Error);
      }),
      /*all_delayed=*/false);
}

TEST(DelayedOperators, ThatFailLaterNameThemselvesAndTheTensor) {
  const auto ours = build_delayed(custom([](Custom& self) {
    self.register_buffer("rows", torch::rand({3, 2}).index_select(0, torch::arange(5)));
  }));
  EXPECT_THAT(refusal([&] { materialise(*ours); }),
              AllOf(HasSubstr("'rows'"), HasSubstr("aten::index_select"),
                    HasSubstr("Build this module outside of that scope")));
}

TEST(DelayedOperators, ShareMemoryAsTheyWould) {
  const auto build = custom([](Custom& self) {
    const auto weight = self.register_parameter("weight", torch::rand({4, 4}));
    self.register_buffer("row", weight.detach()[1]);
    self.register_buffer("sorted", std::get<0>(weight.detach().sort()));
    torch::NoGradGuard no_grad;
    weight.mul_(2);
    auto replaced = torch::rand({2});
    replaced.set_data(torch::tensor({1.f, 2.f}));
    self.register_buffer("replaced", replaced);
    self.register_buffer("beside", torch::tensor({1.f, 2.f}, weight.options()));
    auto elsewhere = torch::empty({0});
    elsewhere.set_(weight.detach().storage(), 4, {4});
    self.register_buffer("elsewhere", elsewhere);
  });
  expect_same_bits(build, /*all_delayed=*/false);
  const auto ours = build_delayed(build);
  materialise(*ours);
  const auto weight = ours->named_parameters()["weight"];
  EXPECT_TRUE(ours->named_buffers()["row"].is_alias_of(weight));
  EXPECT_TRUE(ours->named_buffers()["elsewhere"].is_alias_of(weight));
}

TEST(DelayedOperators, OnOtherThreadsAreThoseOfTheScope) {
  for (const auto& on_thread : std::vector<std::function<void(Tensor)>>{
           [](const Tensor& weight) { torch::NoGradGuard(), weight.detach().normal_(); },
           [](const Tensor& weight) {
             weight.detach().add_(torch::randn({4, 5}));
           },
           [](const Tensor& weight) { weight.detach().mul_(weight.sum().item<float>()); },
           [](const Tensor& weight) { weight.detach().index_put_({torch::tensor({1})}, 3); },
           [](const Tensor&) { torch::rand({700}); }}) {
    expect_same_bits(custom([&](Custom& self) {
                       auto weight = self.register_parameter("weight", torch::randn({4, 5}));
                       std::thread([&] { on_thread(weight); }).join();
                       self.register_parameter("after", torch::randn({20}));
                     }),
                     /*all_delayed=*/false);
  }
  at::set_num_threads(4);
  expect_same_bits(custom([](Custom& self) {
    const auto table = torch::rand({64, 3});
    at::parallel_for(0, 64, 1, [&](std::int64_t begin, std::int64_t end) {
      for (auto i = begin; i < end; ++i) table[i].fill_(static_cast<double>(i));
    });
    self.register_buffer("table", table);
  }));
  at::set_num_threads(1);
}

TEST(DelayedOperators, SeeTheGeneratorWhereItWouldBe) {
  auto& generator = const_cast<at::Generator&>(at::detail::getDefaultCPUGenerator());
  for (const auto& use : std::vector<std::function<Tensor()>>{
           [&] { return generator.get_state().to(torch::kFloat); },
           [&] {
             auto own = generator.clone();
             return torch::randn({20}, own, torch::TensorOptions());
           },
           [&] { return torch::randn({20}, generator, torch::TensorOptions()); },
           [&] {
             const auto state = generator.get_state();
             torch::manual_seed(3);
             auto made = torch::randn({30});
             generator.set_state(state);
             return made;
           },
           [&] {
             return torch::full(
                 {2}, static_cast<double>(
                          at::check_generator<at::CPUGeneratorImpl>(generator)->random()));
           }}) {
    expect_same_bits(registering(use), /*all_delayed=*/false);
  }
}

/// Neither in part nor with LibTorch's word about devices.
TEST(DelayedOperators, InAGraphThatIsHalfPutOffAreRefused) {
  const auto build = [] {
    const auto weight = torch::rand({3, 3}).requires_grad_();
    torch::linalg_inv(weight * 2 + torch::eye(3)).sum().backward();
    return weight.grad();
  };
  EXPECT_THAT(refusal([&] { build_delayed(build); }),
              AllOf(HasSubstr("backward pass under smp::delay_param_initialization"),
                    HasSubstr("Build this module outside of that scope")));
  expect_same_bits(registering([] {
    const auto weight = torch::rand({3, 3}).requires_grad_();
    (weight * 2).tanh().sum().backward();
    return weight.grad();
  }));
}

TEST(DelayedOperators, ThatAskForMemorySayWhatToDo) {
  const auto text = [](const std::function<void()>& use) -> std::string {
    const delay_param_initialization delay;
    try {
      use();
    } catch (const std::exception& error) {
      return error.what();
    }
    return "nothing was refused";
  };
  EXPECT_THAT(text([] { torch::rand({3}).data_ptr<float>(); }), HasSubstr("torch::kCPU"));
  EXPECT_EQ(text([] { torch::rand({3}, torch::kCPU).data_ptr<float>(); }), "nothing was refused");
}

TEST(DelayedOperators, OnShapesAloneHaveTheirShapes) {
  MetaScope meta([] { return 1.; });
  const auto x = torch::rand({4, 3}).requires_grad_();
  EXPECT_EQ(std::get<0>(x.cummax(0)).sizes(), x.sizes());
  EXPECT_EQ(torch::tril_indices(3, 4).sizes(), at::IntArrayRef({2, 6}));
  EXPECT_EQ(torch::multinomial(x.detach(), 2).sizes(), at::IntArrayRef({4, 2}));
  EXPECT_EQ(torch::rrelu(x, .1, .3, true).sizes(), x.sizes());
  const auto distances = torch::pdist(x);
  EXPECT_EQ(distances.sizes(), at::IntArrayRef({6}));
  EXPECT_TRUE(distances.requires_grad());
  EXPECT_EQ(std::get<0>(torch::embedding_bag(x, torch::zeros({5}, torch::kLong),
                                             torch::zeros({2}, torch::kLong)))
                .sizes(),
            at::IntArrayRef({2, 3}));
  EXPECT_EQ((torch::ones({3}, torch::kLong).__lshift__(torch::ones({2, 3}, torch::kLong))).sizes(),
            at::IntArrayRef({2, 3}));
  EXPECT_THAT(refusal([] {
                torch::segment_reduce(torch::rand({8}), "sum", torch::zeros({2}, torch::kLong));
              }),
              AllOf(HasSubstr("aten::segment_reduce"), HasSubstr("shapes alone")));
}

}  // namespace delayed_operators_test
}  // namespace smp::deferred
