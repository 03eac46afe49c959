// Arguments of which several elements are one in memory: expanded, windows that overlap. What a
// remote module returns of them, and changes in them, is as in one process
// (docs/what_is_equal.md, Aliases and in-place changes).
#include <torch/types.h>

#include "api/state/small_program.h"

namespace smp {
namespace shared_elements_test {

using namespace small_programs;

using at::Tensor;
using testing::AllOf;
using testing::HasSubstr;

using View = std::function<Tensor(const Tensor&)>;

/// Something that no other number of the test looks like.
Tensor odd_sum(const Tensor& x) {
  return (x * torch::arange(1, x.numel() + 1, torch::kDouble).view(x.sizes())).pow(2).sum();
}

/// Made of h, which is [2, 4].
const std::vector<View> arguments{[](const Tensor& h) { return h.view({-1}).unfold(0, 4, 1); },
                                  [](const Tensor& h) { return h.view({-1}).unfold(0, 3, 2).t(); },
                                  [](const Tensor& h) {
                                    return h.select(0, 1).expand({3, 4});
                                  },
                                  [](const Tensor& h) {
                                    return h.unsqueeze(1).expand({2, 3, 4});
                                  },
                                  [](const Tensor& h) {
                                    return h.as_strided({3, 3}, {1, 1}, 1);
                                  },
                                  [](const Tensor& h) {
                                    return h.as_strided({2, 2, 2}, {2, 3, 1});
                                  },
                                  [](const Tensor& h) {
                                    return h.unsqueeze(2).expand({2, 4, 2}).unfold(1, 3, 1);
                                  }};

/// What the module returns of its argument, which has two dimensions or more.
const std::vector<View> results{[](const Tensor& x) { return x; },
                                [](const Tensor& x) { return x.select(0, 1); },
                                [](const Tensor& x) { return x.select(-1, 0); },
                                [](const Tensor& x) { return x.transpose(0, 1); },
                                [](const Tensor& x) { return x.narrow(0, 1, 1); },
                                [](const Tensor& x) { return x.slice(-1, 0, 3, 2); },
                                [](const Tensor& x) { return x.view_as(x); },
                                [](const Tensor& x) { return x.diagonal(); },
                                [](const Tensor& x) {
                                  at::DimVector sizes(x.sizes());
                                  sizes.insert(sizes.begin(), 2);
                                  return x.expand(sizes);
                                },
                                [](const Tensor& x) { return x.reshape({-1}); },
                                [](const Tensor& x) { return x.contiguous(); },
                                [](const Tensor& x) { return x.clone(); }};

/// For every argument and every result.
void expect_each_as_alone(
    const std::function<Program(const View& argument, const View& result)>& make) {
  for (std::size_t a = 0; a < arguments.size(); ++a) {
    for (std::size_t r = 0; r < results.size(); ++r) {
      SCOPED_TRACE(testing::Message() << "argument " << a << ", result " << r);
      const auto program = make(arguments[a], results[r]);
      const auto reference = run_alone(program, 2);
      on_ranks(2, [&] { expect_same(run_on_this_rank(program), reference); });
    }
  }
}

ElsewhereImpl::Act returning(const View& result) {
  return [result](ElsewhereImpl&, Tensors in) { return Tensors{result(in[0])}; };
}

TEST(SharedElements, AViewOfSuchAnArgumentIsAsInOneProcess) {
  expect_each_as_alone([](const View& argument, const View& result) -> Program {
    return {returning(result), [argument](Tensor h, Elsewhere& elsewhere) {
              const auto base = h * 1;
              const auto y = elsewhere->forward({argument(base)})[0];
              return odd_sum(base) + odd_sum(y);
            }};
  });
}

/// A hook sees the gradient of the argument itself, of which each element has its own.
TEST(SharedElements, EachElementHasItsOwnGradient) {
  expect_each_as_alone([](const View& argument, const View& result) -> Program {
    return {returning(result), [argument](Tensor h, Elsewhere& elsewhere) {
              const auto x = argument(h * 1);
              x.register_hook([](const Tensor& gradient) {
                const auto factors = torch::arange(1, gradient.numel() + 1, torch::kDouble);
                return gradient * factors.view(gradient.sizes());
              });
              return odd_sum(elsewhere->forward({x})[0]) + x.sum();
            }};
  });
}

/// What the caller writes to the argument afterwards is in the view as well, and only there.
TEST(SharedElements, AViewSharesTheMemoryOfTheArgument) {
  expect_each_as_alone([](const View& argument, const View& result) -> Program {
    return {returning(result), [argument](Tensor h, Elsewhere& elsewhere) {
              const auto base = h.detach().clone();
              const auto y = elsewhere->forward({argument(base)})[0];
              base.mul_(2);
              base.view({-1})[3] += 1;
              return odd_sum(y) + (h * base).sum();
            }};
  });
}

TEST(SharedElements, AChangeWithoutHistoryReachesAllThatAreOne) {
  for (std::size_t a = 0; a < arguments.size(); ++a) {
    SCOPED_TRACE(a);
    const auto& argument = arguments[a];
    expect_as_alone({[](ElsewhereImpl&, Tensors in) {
                       const at::NoGradGuard no_grad;
                       auto x = in[0];
                       while (x.dim() > 1) x = x.select(0, 0);
                       x.narrow(0, 0, 1).add_(2);
                       return Tensors{in[0].sum()};
                     },
                     [argument](Tensor h, Elsewhere& elsewhere) {
                       const auto base = h.detach().clone();
                       const auto x = argument(base);
                       const auto sum = elsewhere->forward({x})[0];
                       return (h * base).sum() + sum + odd_sum(x);
                     }});
  }
}

TEST(SharedElements, AChangeWithHistoryIsRefused) {
  on_ranks(2, [] {
    const Program program{[](ElsewhereImpl& self, Tensors in) {
                            in[0].select(0, 0).mul_(self.weight);
                            return Tensors{in[0].sum()};
                          },
                          [](Tensor h, Elsewhere& elsewhere) {
                            const auto x = (h * 1).select(0, 0).expand({2, 4});
                            return elsewhere->forward({x})[0];
                          }};
    EXPECT_THAT(refusal<RemoteError>([&] { run_on_this_rank(program); }),
                AllOf(HasSubstr("changed tensor 0 of its arguments in place"),
                      HasSubstr("several elements are one in memory"), HasSubstr("clone()")));
  });
}

/// Rows of a batch that overlap, as a time series cut into windows has them.
TEST(SharedElements, TheyMayBeTheRowsOfABatch) {
  on_ranks(3, [] {
    const Program program{returning([](const Tensor& x) { return x.slice(1, 0, 4, 2); }), {}};
    auto net = make_net(program);
    DistributedModel<SmallNet> model(net);
    model.set_partition("", 0);
    model.set_partition("elsewhere", 2);
    auto look =
        smp::step([&](Tensor windows) { return net->elsewhere->forward({windows})[0] * 1; });
    const auto series = torch::arange(12, torch::kDouble);
    for (const auto& windows : {series.unfold(0, 4, 1), series.narrow(0, 0, 4).expand({9, 4}),
                                series.as_strided({9, 4}, {1, 1})}) {
      EXPECT_TRUE(at::equal(look(windows).concat(), windows.slice(1, 0, 4, 2)));
    }
  });
}

}  // namespace shared_elements_test
}  // namespace smp
