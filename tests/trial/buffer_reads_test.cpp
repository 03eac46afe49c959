// Reads of buffers are traced as those of weights are; but what every rank can hold binds nobody.
#include <gmock/gmock.h>
#include <torch/types.h>

#include <string>
#include <tuple>
#include <vector>

#include "partition/model/node_groups.h"
#include "smp/module.h"
#include "smp/nn.h"
#include "support/refusal.h"
#include "trial/traced_run.h"

namespace smp::partitioning {
namespace buffer_reads_test {

using at::Tensor;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Uses = std::vector<std::tuple<int, int, std::string>>;  // reader, holder, buffer

// Its table is used by its parent, as asked.
struct HolderImpl : torch::nn::Module {
  explicit HolderImpl(std::int64_t size)
      : table(register_buffer("table", torch::ones({size}))),
        linear(register_module("linear", nn::Linear(4, 4))) {}
  Tensor forward(const Tensor& x, bool write) {
    if (write) table.add_(1);
    return linear(x) * table.sum();
  }
  Tensor whole() { return table; }
  Tensor table;
  nn::Linear linear;
};
SMP_MODULE(Holder, whole);

struct ScalerImpl : torch::nn::Module {
  Tensor forward(const Tensor& x, const Tensor& by) { return x * by.mean(); }
};
SMP_MODULE(Scaler);

struct How {
  bool write = false, read = false, hand = false, fetch = false;
  std::int64_t size = 8;
};

struct ReaderImpl : torch::nn::Module {
  explicit ReaderImpl(const How& how)
      : how(how),
        holder(register_module("holder", Holder(how.size))),
        scaler(register_module("scaler", Scaler())),
        own(register_buffer("own", torch::ones({how.size}))) {}
  Tensor forward(const Tensor& x) {
    auto y = holder(x, how.write);
    if (how.read) y = y + holder->table.sum();
    if (how.hand) y = scaler(y, own);
    if (how.fetch) y = y + holder->whole().sum();
    return y;
  }
  How how;
  Holder holder;
  Scaler scaler;
  Tensor own;
};
SMP_MODULE(Reader);

Uses uses_of(const How& how) {
  Reader net(how);
  const auto seen = trace(*net, [&] { return std::vector{net(torch::ones({3, 4}))}; });
  Uses uses;
  for (const auto& use : seen.buffer_uses) uses.emplace_back(use.module, use.holder, use.name);
  return uses;
}

constexpr std::int64_t kLarge = kSmallBuffer / 4 + 1;  // of four bytes each

TEST(BufferReads, OfConstantSmallBuffersBindNobody) {
  EXPECT_THAT(uses_of({}), IsEmpty());
  EXPECT_THAT(uses_of({.read = true}), IsEmpty());
  EXPECT_THAT(uses_of({.write = true}), IsEmpty());
  EXPECT_THAT(uses_of({.size = kLarge}), IsEmpty());
}

TEST(BufferReads, OfWrittenOrLargeBuffersBindTheReaderToTheHolder) {
  const auto bound = ElementsAre(std::tuple(0, 1, "holder.table"));
  EXPECT_THAT(uses_of({.write = true, .read = true}), bound);
  EXPECT_THAT(uses_of({.read = true, .size = kLarge}), bound);
}

TEST(BufferReads, OfWhatTravelsBindNobody) {
  EXPECT_THAT(uses_of({.write = true, .fetch = true}), IsEmpty());
  EXPECT_THAT(uses_of({.hand = true, .size = kLarge}), IsEmpty());
  EXPECT_THAT(uses_of({.fetch = true, .size = kLarge}), IsEmpty());
}

TEST(BufferReads, ByTheBodyAreTheModels) {
  Reader net(How{.size = kLarge});
  const auto seen = trace(*net, [&] {
    return std::vector{net(torch::ones({3, 4})) + net->holder->table.sum()};
  });
  ASSERT_EQ(seen.buffer_uses.size(), 1u);
  EXPECT_EQ(seen.buffer_uses[0].module, 0);
}

// Two modules count in one tensor, or in two views of one.
struct CounterImpl : torch::nn::Module {
  explicit CounterImpl(const Tensor& steps)
      : linear(register_module("linear", nn::Linear(4, 4))),
        steps(register_buffer("steps", steps)) {}
  Tensor forward(const Tensor& x) {
    steps.add_(1);
    return linear(x);
  }
  nn::Linear linear;
  Tensor steps;
};
SMP_MODULE(Counter);

struct CountersImpl : torch::nn::Module {
  explicit CountersImpl(bool views)
      : steps(torch::zeros({2})),
        first(register_module("first", Counter(steps))),
        second(register_module("second", Counter(views ? steps.narrow(0, 0, 1) : steps))) {}
  Tensor forward(const Tensor& x) { return second(first(x)); }
  Tensor steps;
  Counter first, second;
};
SMP_MODULE(Counters);

TEST(BufferReads, WrittenBuffersInOneMemoryBindTheirHolders) {
  for (const bool views : {false, true}) {
    Counters net(views);
    const auto seen = trace(*net, [&] { return std::vector{net(torch::ones({3, 4}))}; });
    ASSERT_EQ(seen.buffer_uses.size(), 1u) << views;
    EXPECT_EQ(std::tuple(seen.buffer_uses[0].module, seen.buffer_uses[0].holder), std::tuple(3, 1));
  }
}

TEST(BufferReads, JoinModules) {
  Reader net(How{});
  const Described described(*net);
  const std::vector<int> free(described.tree.nodes.size(), -1);
  const std::vector<simulate::BufferUse> uses{{0, 1, "holder.table"}};
  EXPECT_EQ(group_modules(described.tree, {}, free).first[1], 1);
  EXPECT_EQ(group_modules(described.tree, {}, free, uses).first[1], 0);
  auto apart = free;
  apart[1] = 1;
  EXPECT_THAT(refusal([&] { group_modules(described.tree, {}, apart, uses); }),
              HasSubstr("the buffer holder.table of \"holder\", which is written in a step or "
                        "larger than 64 KiB, is also held or used by the model itself"));
}

}  // namespace buffer_reads_test
}  // namespace smp::partitioning
