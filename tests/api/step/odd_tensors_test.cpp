// Tensors that are more, or less, than dense numbers: they cross ranks and come back as in one
// process, or the step says which tensor of which module cannot, and what to do.
#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/accumulate.h>
#include <torch/csrc/autograd/forward_grad.h>
#include <torch/nn/modules/embedding.h>
#include <torch/types.h>

#include "api/state/small_program.h"

namespace smp {
namespace odd_tensors_test {

using namespace small_programs;

using at::Tensor;
using testing::AllOf;
using testing::HasSubstr;

Tensor numbers(at::IntArrayRef sizes) {
  return torch::arange(c10::multiply_integers(sizes), torch::kDouble).view(sizes) / 7;
}

std::map<std::string, Tensor> odd_tensors() {
  const auto complex = torch::complex(numbers({3, 4}), numbers({3, 4}) + 1);
  std::map<std::string, Tensor> odd{
      {"a number", torch::tensor(3.5)},
      {"nothing", torch::empty({0, 3})},
      {"one bit", numbers({3, 4}) > 0.5},
      {"bfloat16", numbers({3, 4}).to(torch::kBFloat16)},
      {"half", numbers({60, 80}).to(torch::kHalf)},
      {"float8", numbers({3, 4}).to(at::kFloat8_e4m3fn)},
      {"complex", complex},
      {"a conjugate", complex.conj()},
      {"large and conjugate", complex.repeat({40, 40}).conj()},
      {"a negative", torch::imag(complex.conj())},
      {"transposed", numbers({3, 4}).t()},
      {"large and transposed", numbers({60, 80}).t()},
      {"with gaps", numbers({60, 80}).narrow(1, 3, 50)},
      {"expanded", numbers({1, 4}).expand({5, 4})},
      {"overlapping", numbers({8}).unfold(0, 4, 1)},
      {"channels last", numbers({2, 3, 4, 5}).contiguous(at::MemoryFormat::ChannelsLast)},
      {"of 64 dimensions", torch::ones(std::vector<std::int64_t>(64, 1)) * 2},
      {"sparse", torch::tensor({{0., 2.}, {0., 3.}}).to_sparse()},
      {"sparse and not coalesced",
       at::sparse_coo_tensor(torch::tensor({{1, 1}}, torch::kLong), torch::tensor({1., 2.}), {3})},
      {"sparse and large", numbers({60, 80}).to_sparse()},
      {"sparse and empty", torch::zeros({3, 4}).to_sparse()},
      {"partly sparse", numbers({6, 8}).to_sparse(1)}};
  {
    const c10::InferenceMode inference;
    odd["of inference mode"] = torch::ones({3}) * 3;
  }
  return odd;
}

void expect_like(const Tensor& got, const Tensor& expected, const std::string& name) {
  ASSERT_TRUE(got.defined()) << name;
  EXPECT_EQ(got.scalar_type(), expected.scalar_type()) << name;
  EXPECT_EQ(got.layout(), expected.layout()) << name;
  ASSERT_EQ(got.sizes(), expected.sizes()) << name;
  auto plain = [](const Tensor& tensor) {
    auto dense = tensor.to_dense().contiguous();
    return dense.element_size() == 1 ? dense.view(torch::kByte) : dense;
  };
  EXPECT_TRUE(at::equal(plain(got), plain(expected))) << name;
}

/// A step on two ranks in which rank 1 makes `results` of `arguments`.
Tensors across(const ElsewhereImpl::Act& act, const Tensors& arguments) {
  const Program program{act, {}};
  auto net = make_net(program);
  DistributedModel<SmallNet> model(net);
  model.set_partition("", 0);
  model.set_partition("elsewhere", 1);
  Tensors results;
  auto run = smp::step([&] { results = net->elsewhere->forward(arguments); });
  run();
  return results;
}

TEST(OddTensors, AreArguments) {
  for (const auto& [name, tensor] : odd_tensors()) {
    SCOPED_TRACE(name);
    on_ranks(
        2,
        [&, &name = name, &tensor = tensor] {
          across(
              [&](ElsewhereImpl&, Tensors in) {
                if (!in.empty()) expect_like(in[0], tensor, name);
                return Tensors{};
              },
              {tensor});
        },
        1);
  }
}

TEST(OddTensors, AreResults) {
  for (const auto& [name, tensor] : odd_tensors()) {
    SCOPED_TRACE(name);
    on_ranks(
        2,
        [&, &name = name, &tensor = tensor] {
          const auto got = across(
              [&](ElsewhereImpl&, Tensors) {
                return Tensors{tensor.is_inference() ? tensor.clone() : tensor};
              },
              {});
          if (rank() == 0) expect_like(got.at(0), tensor, name);
        },
        1);
  }
}

TEST(OddTensors, AreOutputsOfAStep) {
  for (const auto& [name, tensor] : odd_tensors()) {
    SCOPED_TRACE(name);
    on_ranks(
        2,
        [&, &name = name, &tensor = tensor] {
          auto run = smp::step([&] { return tensor; });
          expect_like(run().outputs().at(0), tensor, name);
        },
        1);
  }
}

TEST(OddTensors, AreArgumentsOfAStep) {
  for (const auto& [name, tensor] : odd_tensors()) {
    SCOPED_TRACE(name);
    on_ranks(
        2,
        [&, &name = name, &tensor = tensor] {
          StepOptions options;
          options.non_split = {0};
          auto run = smp::step([&](Tensor own) { expect_like(own, tensor, name); }, options);
          run(tensor);
        },
        1);
  }
}

TEST(OddTensors, KeepTheOrderOfTheirElementsInMemory) {
  on_ranks(
      2,
      [] {
        const auto image = numbers({2, 3, 4, 5}).contiguous(at::MemoryFormat::ChannelsLast);
        across(
            [&](ElsewhereImpl&, Tensors in) {
              if (!in.empty()) {
                EXPECT_EQ(in[0].strides(), image.strides());
                EXPECT_EQ(in[1].strides(), (at::DimVector{1, 80}));
                EXPECT_FALSE(in[2].is_contiguous());
                EXPECT_LT(in[2].storage().nbytes(), 60 * 52 * 8);
                EXPECT_EQ(in[3].storage().nbytes(), 4 * 8);
              }
              return Tensors{};
            },
            {image, numbers({60, 80}).t(), numbers({60, 80}).narrow(1, 3, 50),
             numbers({1, 4}).expand({5, 4})});
      },
      1);
}

TEST(OddTensors, SparseOnesHaveGradients) {
  expect_as_alone({[](ElsewhereImpl& self, Tensors in) {
                     return Tensors{torch::sparse_coo_tensor(torch::arange(4).view({1, 4}),
                                                             self.weight * in[0].sum(), {6})};
                   },
                   [](Tensor h, Elsewhere& elsewhere) {
                     const auto sparse = elsewhere->forward({h})[0];
                     EXPECT_TRUE(sparse.is_sparse());
                     return sparse.to_dense().pow(2).sum() + h.sum();
                   }});
}

/// The scope of forward-mode differentiation, of which the process has one at a time.
class Tangents {
 public:
  Tangents() : level_(torch::autograd::ForwardADLevel::get_next_idx()) {}
  ~Tangents() { torch::autograd::ForwardADLevel::release_idx(level_); }
  Tangents(const Tangents&) = delete;
  Tangents& operator=(const Tangents&) = delete;
  Tensor make() const {
    return at::_make_dual(torch::ones({3}), torch::ones({3}), static_cast<std::int64_t>(level_));
  }

 private:
  const std::uint64_t level_;
};

TEST(OddTensors, WithoutAWayAcrossAreRefusedByName) {
  const Tangents tangents;
  const std::map<std::string, std::function<Tensor()>> hopeless{
      {"quantised", [] { return at::quantize_per_tensor(torch::ones({3}), 0.1, 0, at::kQInt8); }},
      {"meta", [] { return torch::empty({3}, torch::kMeta); }},
      {"tangent", [&] { return tangents.make(); }},
      {"nested",
       [] {
         return at::_nested_tensor_from_tensor_list({torch::ones({2}), torch::ones({3})});
       }},
      {"MKLDNN",
       [] {
         return torch::ones({2, 3}).to_mkldnn();
       }},
      {"compressed sparse", [] {
         return torch::ones({2, 3}).to_sparse_csr();
       }}};
  for (const auto& [what, make] : hopeless) {
    SCOPED_TRACE(what);
    on_ranks(
        2,
        [&, &what = what, &make = make] {
          const auto result = refused_step<RemoteError>(0, [&] {
            across([&](ElsewhereImpl&, Tensors) { return Tensors{torch::ones({1}), make()}; }, {});
          });
          EXPECT_THAT(result, AllOf(HasSubstr("tensor 1 of the outputs of elsewhere"),
                                    HasSubstr(what), HasSubstr("place the module")));
          const auto argument = refused_step<UnsupportedError>(
              0, [&] { across([](ElsewhereImpl&, Tensors) { return Tensors{}; }, {make()}); });
          EXPECT_THAT(argument, AllOf(HasSubstr("tensor 0 of the arguments of elsewhere"),
                                      HasSubstr(what), HasSubstr("place the module")));
          if (what == "tangent") return;  // history, which outputs of a step have none of
          auto run = smp::step([&] { return make(); });
          EXPECT_THAT(
              refused_step<UnsupportedError>(0, [&] { run(); }),
              AllOf(HasSubstr("tensor 0 of the outputs of the step's body"), HasSubstr(what)));
        },
        1);
  }
}

TEST(OddTensors, WithTangentsAreNoArgumentsOfAStep) {
  const Tangents tangents;
  for (const int ranks : {1, 2}) {
    on_ranks(ranks, [&] {
      auto run = smp::step([&](Tensor) {});
      EXPECT_THAT(refused_step<UnsupportedError>(0, [&] { run(tangents.make()); }),
                  AllOf(HasSubstr("argument 0"), HasSubstr("tangent"), HasSubstr("in the body")));
    });
  }
}

struct SparseTableImpl : torch::nn::Module {
  SparseTableImpl()
      : table(register_module(
            "table", torch::nn::Embedding(torch::nn::EmbeddingOptions(10, 4).sparse(true)))) {
    to(torch::kDouble);
  }
  Tensor forward(const Tensor& words) { return table(words); }
  torch::nn::Embedding table;
};
SMP_MODULE(SparseTable);

struct SparseReaderImpl : torch::nn::Module {
  SparseReaderImpl() : words(register_module("words", SparseTable())) {}
  Tensor forward(const Tensor& numbers) { return words(numbers); }
  SparseTable words;
};
SMP_MODULE(SparseReader);

TEST(OddTensors, SparseGradientsOfARemoteTable) {
  const auto words = torch::tensor({{1, 2}, {2, 3}, {9, 1}, {1, 1}}, torch::kLong);
  torch::manual_seed(2);
  SparseTable plain;
  for (int m = 0; m < 2; ++m) {
    (plain(words.narrow(0, 2 * m, 2)).pow(2).sum() / 2).backward();
  }
  const auto reference = plain->table->weight.grad().to_dense();
  on_ranks(2, [&] {
    torch::manual_seed(2);
    SparseReader own;
    DistributedModel<SparseReader> model(own);
    model.set_partition("", 0);
    model.set_partition("words", 1);
    auto train = smp::step([&](Tensor slice) { model.backward(model(slice).pow(2).sum()); });
    train(words);
    if (rank() != 1) return;
    const auto gradient = own->words->table->weight.grad();
    EXPECT_TRUE(gradient.is_sparse());
    EXPECT_TRUE(at::allclose(gradient.to_dense(), reference, 1e-12, 1e-13));
  });
}

}  // namespace odd_tensors_test
}  // namespace smp
