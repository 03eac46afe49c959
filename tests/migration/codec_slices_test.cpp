// What microbatches get of values whose codec slices them (smp/codec.h): wherever they stand, over
// uneven rows and replicas, with gradients; and what is refused.
#include <gmock/gmock.h>

#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "api/two_ranks.h"

namespace smp {
namespace codec_slices_test {

using at::Tensor;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

/// Rows of any length: a batch in a form of its own.
class Rags {
 public:
  Rags(Tensor values, std::vector<std::int64_t> lengths)
      : values_(std::move(values)), lengths_(std::move(lengths)) {}
  std::int64_t rows() const { return static_cast<std::int64_t>(lengths_.size()); }
  const Tensor& values() const { return values_; }
  const std::vector<std::int64_t>& lengths() const { return lengths_; }
  Rags part(MicrobatchRows rows) const {
    const auto begin = lengths_.begin() + static_cast<std::ptrdiff_t>(rows.start);
    std::int64_t first = 0, count = 0;
    for (auto at = lengths_.begin(); at != begin; ++at) first += *at;
    const std::vector<std::int64_t> own(begin, begin + static_cast<std::ptrdiff_t>(rows.length));
    for (const auto length : own) count += length;
    return {values_.narrow(0, first, count), own};
  }

 private:
  Tensor values_;
  std::vector<std::int64_t> lengths_;
};

/// Says nothing of rows: each microbatch gets a share of the numbers, and the whole table.
struct Deal {
  std::vector<int> numbers;
  Tensor table;
};

struct Fragile {
  int value = 0;
};

/// Cannot even be asked for its rows where there are none.
struct Strict {
  Tensor rows;
};

/// Has entries that nobody can see.
class Sealed {
 public:
  explicit Sealed(std::string letters) : letters_(std::move(letters)) {}
  std::size_t size() const { return letters_.size(); }
  const char* begin() const { return letters_.data(); }
  const std::string& letters() const { return letters_; }

 private:
  std::string letters_;
};

}  // namespace codec_slices_test

template <>
struct Codec<codec_slices_test::Rags> {
  using Rags = codec_slices_test::Rags;
  static void encode(Writer& out, const Rags& all) {
    out.put(all.values());
    out.put(all.lengths());
  }
  static Rags decode(Reader& in) {
    auto values = in.get<at::Tensor>();
    return {std::move(values), in.get<std::vector<std::int64_t>>()};
  }
  static Rags slice(const Rags& all, int microbatch, int microbatches) {
    return all.part(microbatch_rows(all.rows(), microbatch, microbatches));
  }
  static std::int64_t rows(const Rags& all) { return all.rows(); }
};

template <>
struct Codec<codec_slices_test::Deal> {
  using Deal = codec_slices_test::Deal;
  static void encode(Writer& out, const Deal& deal) {
    out.put(deal.numbers);
    out.put(deal.table);
  }
  static Deal decode(Reader& in) {
    auto numbers = in.get<std::vector<int>>();
    return {std::move(numbers), in.get<at::Tensor>()};
  }
  static Deal slice(const Deal& deal, int microbatch, int microbatches) {
    Deal own{{}, deal.table};
    for (std::size_t i = 0; i < deal.numbers.size(); ++i) {
      if (static_cast<int>(i) % microbatches == microbatch) own.numbers.push_back(deal.numbers[i]);
    }
    return own;
  }
};

template <>
struct Codec<codec_slices_test::Fragile> {
  using Fragile = codec_slices_test::Fragile;
  static void encode(Writer& out, const Fragile& fragile) { out.put(fragile.value); }
  static Fragile decode(Reader& in) { return {in.get<int>()}; }
  static Fragile slice(const Fragile& fragile, int microbatch, int) {
    if (microbatch == 1) throw std::runtime_error("broke into pieces");
    return fragile;
  }
};

template <>
struct Codec<codec_slices_test::Strict> {
  using Strict = codec_slices_test::Strict;
  static void encode(Writer& out, const Strict& strict) { out.put(strict.rows); }
  static Strict decode(Reader& in) { return {in.get<at::Tensor>()}; }
  static Strict slice(const Strict& strict, int microbatch, int microbatches) {
    return {strict.rows.chunk(microbatches).at(static_cast<std::size_t>(microbatch))};
  }
  static std::int64_t rows(const Strict& strict) {
    if (!strict.rows.defined()) throw std::invalid_argument("there are none");
    return strict.rows.size(0);
  }
};

template <>
struct Codec<codec_slices_test::Sealed> {
  using Sealed = codec_slices_test::Sealed;
  static void encode(Writer& out, const Sealed& sealed) {
    out.count(sealed.size());
    out.bytes(sealed.begin(), sealed.size());
  }
  static Sealed decode(Reader& in) {
    std::string letters(in.count(), ' ');
    in.bytes(letters.data(), letters.size());
    return Sealed(letters);
  }
};

namespace codec_slices_test {

/// Row i holds i + 1 values; all values differ.
Rags rags(std::int64_t rows, double first = 0) {
  std::vector<std::int64_t> lengths;
  for (std::int64_t i = 0; i < rows; ++i) lengths.push_back(i + 1);
  const auto count = rows * (rows + 1) / 2;
  return {torch::arange(first, first + static_cast<double>(count), torch::kDouble), lengths};
}

TEST(CodecSlices, AreWhatMicrobatchesGet) {
  on_ranks(2, [] {
    auto look = smp::step([](const Rags& own) { return std::pair(own.values(), own.lengths()); });
    const auto [values, lengths] = look(rags(4));
    EXPECT_THAT(lengths.outputs(), ElementsAre(ElementsAre(1, 2), ElementsAre(3, 4)));
    EXPECT_TRUE(torch::equal(values.concat(), rags(4).values()));
    EXPECT_TRUE(torch::equal(values.outputs()[1], torch::arange(3., 10., torch::kDouble)));
  });
}

struct Both {
  Rags seen;
  Tensor label;
};

/// Everything around them is divided as ever.
TEST(CodecSlices, StandInAnyContainer) {
  on_ranks(2, [] {
    const std::vector<std::int64_t> first{1, 2}, last{3, 4};
    const auto label = torch::arange(4., torch::kDouble);
    auto in_struct = smp::step([](const Both& own) {
      EXPECT_EQ(own.label.size(0), 2);
      return own.seen.lengths();
    });
    EXPECT_THAT(in_struct(Both{rags(4), label}).outputs(), ElementsAre(first, last));

    auto in_list = smp::step([](const std::vector<Rags>& own, const Tensor& x) {
      EXPECT_EQ(own.size(), 3U) << "a list of sliced values is whole";
      EXPECT_EQ(x.size(0), 2);
      EXPECT_EQ(own[0].lengths(), own[2].lengths());
      return own[1].lengths();
    });
    EXPECT_THAT(in_list(std::vector<Rags>{rags(4), rags(4, 5), rags(4, 9)}, label).outputs(),
                ElementsAre(first, last));

    using Map = std::map<std::string, std::optional<Rags>>;
    auto in_map = smp::step([](const std::tuple<int, Map, Tensor>& own) {
      EXPECT_EQ(std::get<0>(own), 7);
      EXPECT_EQ(std::get<2>(own).size(0), 2);
      EXPECT_FALSE(std::get<1>(own).at("none"));
      return std::get<1>(own).at("seen")->lengths();
    });
    EXPECT_THAT(in_map(std::tuple(7, Map{{"none", {}}, {"seen", rags(4)}}, label)).outputs(),
                ElementsAre(first, last));

    using Either = std::variant<int, Rags>;
    auto in_variant = smp::step([](const std::pair<std::vector<int>, Either>& own) {
      EXPECT_EQ(own.first.size(), 2U) << "an entry a row";
      return std::get<Rags>(own.second).lengths();
    });
    EXPECT_THAT(in_variant(std::pair(std::vector<int>{1, 2, 3, 4}, Either(rags(4)))).outputs(),
                ElementsAre(first, last));
  });
}

TEST(CodecSlices, OfUnevenRowsGoWithTheTensorsBeside) {
  on_ranks(
      2,
      [] {
        auto look = smp::step([](const Rags& own, const Tensor& x) {
          EXPECT_EQ(own.rows(), x.size(0));
          return std::tuple(own.rows(), x.sum());
        });
        const auto x = torch::arange(7., torch::kDouble);
        const auto [rows, sums] = look(rags(7), x);
        EXPECT_THAT(rows.outputs(), ElementsAre(3, 2, 2));
        EXPECT_THAT(rows.weights(), ElementsAre(3. / 7, 2. / 7, 2. / 7));
        const auto alone = smp::step([](const Rags& own) { return own.rows(); })(rags(2));
        EXPECT_THAT(alone.outputs(), ElementsAre(1, 1)) << "fewer rows make fewer microbatches";
        EXPECT_THAT(
            refused_step<UsageError>(0, [&] { look(rags(6), x); }),
            AllOf(HasSubstr("argument 0 of the step has 6 rows"), HasSubstr("argument 1 has 7")));
      },
      3);
}

TEST(CodecSlices, MayDealAsTheyLike) {
  on_ranks(2, [] {
    auto look = smp::step([](const Deal& own, const Tensor& x) {
      EXPECT_EQ(own.table.size(0), 5);
      EXPECT_EQ(x.size(0), 2);
      return own.numbers;
    });
    const Deal deal{{1, 2, 3, 4, 5}, torch::zeros({5})};
    const auto out = look(deal, torch::zeros({4}));
    EXPECT_THAT(out.outputs(), ElementsAre(ElementsAre(1, 3, 5), ElementsAre(2, 4)));
    auto alone = smp::step([](const Deal& own) { return own.numbers.size(); });
    EXPECT_THAT(alone(deal).weights(), ElementsAre(0.5, 0.5)) << "nothing says of rows";
    auto whole = smp::step([](const Deal& own) { return own.numbers.size(); }, {.non_split = {0}});
    EXPECT_THAT(whole(deal).outputs(), ElementsAre(5U, 5U));
  });
}

/// A value that the options call a row goes with its entry, and is not sliced.
TEST(CodecSlices, AreNotMadeOfRows) {
  on_ranks(2, [] {
    auto look = smp::step(
        [](const std::vector<Both>& own) {
          EXPECT_EQ(own.size(), 2U);
          return own[0].seen.rows();
        },
        {.split_entries = {0}});
    std::vector<Both> entries;
    for (int i = 1; i <= 4; ++i) entries.push_back({rags(i), torch::zeros({3})});
    EXPECT_THAT(look(entries).outputs(), ElementsAre(1, 3));
    auto unsaid = smp::step([](const std::vector<Both>& own) { return own.size(); });
    EXPECT_THAT(
        refused_step<UsageError>(
            0,
            [&] {
              unsaid(std::vector<Both>{{rags(2), torch::zeros({3})}, {rags(2), torch::zeros({3})}});
            }),
        AllOf(HasSubstr("their codecs slice"), HasSubstr("split_entries = {0}")));
  });
}

nn::Sequential make_net() {
  torch::manual_seed(4);
  nn::Sequential net(nn::Linear(1, 4), nn::Linear(4, 1));
  net->to(torch::kDouble);
  return net;
}

/// The loss of each row is that of the sum of its values.
template <class Net>
Tensor loss_of(Net& net, const Rags& own, const Tensor& target) {
  std::vector<Tensor> sums;
  std::int64_t at = 0;
  for (const auto length : own.lengths()) {
    sums.push_back(own.values().narrow(0, at, length).sum());
    at += length;
  }
  return (net->forward(torch::stack(sums).unsqueeze(1)).squeeze(1) - target).pow(2).mean();
}

/// Two replicas with batches of different sizes on two stages, and a graph outside of the step that
/// leads to the values: everything has the gradients of one process.
TEST(CodecSlices, HaveTheGradientsOfOneProcess) {
  const std::vector<std::int64_t> rows{5, 4};
  const auto batch = [&](int replica) {
    return rags(rows[static_cast<std::size_t>(replica)], 10. * replica);
  };
  auto plain = make_net();
  std::vector<Tensor> scales;
  Tensor sum = torch::zeros({}, torch::kDouble);
  for (int replica = 0; replica < 2; ++replica) {
    const auto own = batch(replica);
    scales.push_back(torch::full({1}, 0.1, torch::kDouble).requires_grad_());
    const auto target = torch::arange(static_cast<double>(own.rows()), torch::kDouble);
    sum = sum + loss_of(plain, Rags(own.values() * scales.back(), own.lengths()), target) *
                    (static_cast<double>(own.rows()) / 9);
  }
  sum.backward();
  Config config;
  config.pipeline_parallel_degree = 2;
  config.microbatches = 3;
  config.plan_cache = "off";
  run_local(
      4,
      [&] {
        auto net = make_net();
        DistributedModel model(net);
        auto train = smp::step([&](const Rags& own, const Tensor& target) {
          const auto loss = loss_of(model, own, target);
          model.backward(loss);
        });
        const auto own = batch(dp_rank());
        const auto scale = torch::full({1}, 0.1, torch::kDouble).requires_grad_();
        train(Rags(own.values() * scale, own.lengths()),
              torch::arange(static_cast<double>(own.rows()), torch::kDouble));
        for (const auto& [name, parameter] : model.local_named_parameters()) {
          EXPECT_TRUE(torch::allclose(parameter.grad(), plain->named_parameters()[name].grad(),
                                      1e-12, 1e-14))
              << name;
        }
        if (pp_rank() == 0) {
          const auto& wanted = scales[static_cast<std::size_t>(dp_rank())].grad();
          EXPECT_TRUE(torch::allclose(scale.grad(), wanted, 1e-12, 1e-14));
        }
      },
      config);
}

TEST(CodecSlices, ThatThrowEndTheStepByName) {
  on_ranks(2, [] {
    auto look = smp::step([](const std::pair<int, Fragile>& own) { return own.first; });
    EXPECT_THAT(refused_step<UsageError>(0, [&] { look(std::pair(1, Fragile{2})); }),
                AllOf(HasSubstr("argument 0.second of the step"), HasSubstr("Fragile"),
                      HasSubstr("slice() of its codec"), HasSubstr("broke into pieces")));
    auto good = smp::step([](const Tensor& x) { return x; });
    EXPECT_EQ(good(torch::zeros({4})).concat().size(0), 4) << "the next step works";
  });
}

TEST(CodecSlices, AreMadeWhereArgumentsAreRead) {
  on_ranks(2, [] {
    auto look = smp::step([](const Strict& own) { return own.rows; });
    const auto out = look(rank() == 0 ? Strict{torch::arange(4.)} : Strict{});
    EXPECT_TRUE(torch::equal(out.concat(), torch::arange(4.)));
    EXPECT_THAT(refused_step<UsageError>(0, [&] { look(Strict{}); }),
                AllOf(HasSubstr("argument 0 of the step"), HasSubstr("Strict"),
                      HasSubstr("its codec threw")));
    EXPECT_EQ(look(Strict{torch::arange(4.)}).concat().size(0), 4) << "the next step works";
  });
}

/// As many entries as rows, and nobody knows how to divide them: not passed whole without a word.
TEST(CodecSlices, ThatAreMissingAreAskedForByName) {
  on_ranks(2, [] {
    auto look = smp::step([](const Sealed& own, const Tensor&) { return own.size(); });
    EXPECT_THAT(refused_step<UsageError>(0, [&] { look(Sealed("abcd"), torch::zeros({4})); }),
                AllOf(HasSubstr("argument 0 of the step"), HasSubstr("Sealed with 4 entries"),
                      HasSubstr("codec with slice()")));
    EXPECT_THAT(look(Sealed("abc"), torch::zeros({4})).outputs(), ElementsAre(3U, 3U));
    auto whole =
        smp::step([](const Sealed& own, const Tensor&) { return own.size(); }, {.non_split = {0}});
    EXPECT_THAT(whole(Sealed("abcd"), torch::zeros({4})).outputs(), ElementsAre(4U, 4U));
  });
}

/// A tensor that every slice has belongs to all microbatches.
TEST(CodecSlices, ShareWhatMustNotBeWritten) {
  on_ranks(2, [] {
    auto write_table = smp::step([](const Deal& own) {
      Tensor table = own.table;
      table.add_(1);
    });
    const Deal deal{{1, 2}, torch::zeros({5})};
    EXPECT_THAT(refused_step<UsageError>(0, [&] { write_table(deal); }),
                HasSubstr("changed argument 0 of the step in place"));
    auto write_rows = smp::step([](const Rags& own) {
      Tensor values = own.values();
      values.add_(1);
      return values;
    });
    EXPECT_TRUE(torch::equal(write_rows(rags(4)).concat(), rags(4).values() + 1));
  });
}

}  // namespace codec_slices_test
}  // namespace smp
