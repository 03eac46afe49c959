// Buffers are parameters' equals (docs/design.md, Buffers): what is read has the values of one
// process wherever it is read, each has one owner, and one that is too large to be sent with every
// step lives with its reader.
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <memory>

#include "api/state/buffers_testing.h"
#include "api/two_ranks.h"

namespace smp::buffer_tests {
namespace buffers_test {

using testing::AllOf;
using testing::HasSubstr;

// ---- reads -------------------------------------------------------------------------------------

TEST(Buffers, AreReadByAnyModule) {
  expect_trained<Reader>([] { return Reader(8); }, {{"tables", 1}, {"last", 2}});
}

TEST(Buffers, AreReadWithoutATrialToo) {
  expect_trained<Reader>([] { return Reader(8); }, {{"tables", 1}, {"last", 2}}, true);
}

TEST(Buffers, ThatAreLargeLiveWithTheirReader) {
  expect_trained<Reader>([] { return Reader(9000); }, {{"last", 1}}, false, 2);
}

TEST(Buffers, ThatAreLargeAndPinnedElsewhereAreRefusedBeforeTheFirstStep) {
  on_ranks(2, [] {
    PlacedReader own(9000);
    auto train = smp::step([&](Tensor x) { own.model.backward(own.model(x).mean()); });
    EXPECT_THAT(refusal([&] { train(batch(0)); }),
                AllOf(HasSubstr("the buffer tables.big of \"tables\""), HasSubstr("64 KiB"),
                      HasSubstr("place both there")));
  });
}

TEST(Buffers, AreOwnedByOneRankEach) {
  on_ranks(2, [] {
    PlacedReader own;
    own.model.place();
    EXPECT_EQ(own.model.owns(own.net->tables->scale), rank() == 1);
    EXPECT_EQ(own.model.local_named_buffers().size(), rank() == 1 ? 6u : 0u);
    EXPECT_EQ(own.net->tables->scale.sum().item<double>(), 6);
  });
}

// Blocks that share one table, which each registered itself.
struct SharerImpl : torch::nn::Module {
  explicit SharerImpl(const Tensor& table)
      : linear(register_module("linear", nn::Linear(4, 4))),
        table(register_buffer("table", table)) {}
  Tensor forward(const Tensor& x) { return linear(x) * table.slice(0, 0, 4); }
  nn::Linear linear;
  Tensor table;
};
SMP_MODULE(Sharer);

struct SharersImpl : torch::nn::Module {
  SharersImpl() : SharersImpl(torch::linspace(0, 1, 9000, torch::kDouble)) {}
  explicit SharersImpl(const Tensor& table)
      : first(register_module("first", Sharer(table))),
        second(register_module("second", Sharer(table))),
        third(register_module("third", Sharer(table.slice(0, 4, 9000)))) {
    widen(*this);
  }
  Tensor forward(const Tensor& x) { return third(second(first(x))); }
  Sharer first, second, third;
};
SMP_MODULE(Sharers);

TEST(Buffers, MayBeHeldBySeveralModules) {
  expect_trained<Sharers>([] { return Sharers(); }, {{"first", 1}, {"second", 2}, {"third", 3}});
}

// ---- views of parameters -----------------------------------------------------------------------

struct ViewerImpl : torch::nn::Module {
  explicit ViewerImpl(const Tensor& of)
      : view(register_buffer("view", of.detach().slice(0, 0, 4))),
        linear(register_module("linear", nn::Linear(4, 4))) {
    widen(*this);
  }
  Tensor forward(const Tensor& x) { return linear(x) * view; }
  Tensor view;
  nn::Linear linear;
};
SMP_MODULE(Viewer);

struct ViewsImpl : torch::nn::Module {
  ViewsImpl()
      : first(register_module("first", nn::Linear(4, 4))),
        holder(register_module("holder", make_holder())),
        viewer(register_module("viewer", Viewer(holder->weight))) {
    widen(*this);
  }
  struct HolderImpl : torch::nn::Module {
    HolderImpl() : weight(register_parameter("weight", torch::linspace(1, 2, 4, torch::kDouble))) {}
    Tensor forward(const Tensor& x) { return x * weight; }
    Tensor weight;
  };
  static std::shared_ptr<Routed<HolderImpl>> make_holder() { return make_module<HolderImpl>(); }
  Tensor forward(const Tensor& x) { return viewer(holder->forward(first(x))); }
  nn::Linear first;
  std::shared_ptr<Routed<HolderImpl>> holder;
  Viewer viewer;
};
SMP_MODULE(Views);

TEST(Buffers, ThatAreViewsOfAParameterLiveWithIt) {
  expect_trained<Views>([] { return Views(); }, {{"first", 1}, {"viewer", 2}});
  on_ranks(2, [] {
    Views net;
    DistributedModel model(net);
    model.set_partition("holder", 0);
    model.set_partition("viewer", 1);
    EXPECT_THAT(refusal([&] { model.place(); }), HasSubstr("holder.weight"));
  });
}

}  // namespace buffers_test
}  // namespace smp::buffer_tests
