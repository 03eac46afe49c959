// What each microbatch gets of arguments of every type, and what is refused because it may be meant
// in two ways (docs/what_is_equal.md, Arguments of a step).
#include "api/step/division.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <torch/nn/modules/container/sequential.h>

#include <array>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "api/step/microbatches.h"
#include "support/refusal.h"

namespace smp {
namespace division_test {

using at::Tensor;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

using Numbers = std::vector<double>;

Tensor of_shape(at::IntArrayRef sizes, at::ScalarType type = at::kDouble) {
  return at::arange(at::empty(sizes).numel(), type).view(sizes);
}

/// A step that is called again and again.
struct Called {
  StepOptions options = {};
  int wanted = 2;
  detail::SeenCuts seen = {};

  template <class... Arguments>
  std::unique_ptr<Microbatches> with(const Arguments&... arguments) {
    std::vector<detail::StepArgument> parts;
    (parts.push_back(detail::take_apart(arguments)), ...);
    return std::make_unique<Microbatches>(std::move(parts), options, wanted, "mean", seen);
  }
  template <class... Arguments>
  std::string refusal_of(const Arguments&... arguments) {
    return refusal([&] { with(arguments...); });
  }
};

/// Returns what a microbatch gets of an argument of type T.
template <class T>
T part(const std::unique_ptr<Microbatches>& all, int microbatch, std::size_t argument) {
  auto packets = all->preview(microbatch, /*meta=*/false);
  Reader reader(packets[argument]);
  auto value = reader.get<T>();
  reader.finish();
  return value;
}

/// Returns the number of rows of the argument's tensors and lists that a microbatch gets.
template <class T>
std::size_t length(const std::unique_ptr<Microbatches>& all, int microbatch, std::size_t argument) {
  return part<T>(all, microbatch, argument).size();
}

struct Box {
  double left = 0;
  std::int32_t label = 0;
  bool operator==(const Box&) const = default;
};

struct Sample {
  Tensor image;
  std::string name;
};

struct Batch {
  Tensor tokens;
  Tensor mask;
  std::optional<Numbers> weights;
  std::map<std::string, Tensor> extra;
};

// ---- lists of values ---------------------------------------------------------------------------

TEST(Division, AListWithAnEntryARowIsSplit) {
  const std::vector<Box> boxes{{1, 1}, {2, 2}, {3, 3}, {4, 4}};
  const std::vector<std::string> names{"a", "bb", "", "dddd"};
  const std::vector<bool> flags{true, false, false, true};
  const std::vector<Numbers> ragged{{1}, {}, {3, 3, 3}, {4, 4}};
  const std::vector<std::optional<int>> some{1, std::nullopt, 3, std::nullopt};
  Called step;
  const auto all =
      step.with(of_shape({4, 3}), Numbers{1, 2, 3, 4}, boxes, names, flags, ragged, some);
  EXPECT_THAT(part<Numbers>(all, 0, 1), ElementsAre(1, 2));
  EXPECT_THAT(part<Numbers>(all, 1, 1), ElementsAre(3, 4));
  EXPECT_THAT(part<std::vector<Box>>(all, 1, 2), ElementsAre(boxes[2], boxes[3]));
  EXPECT_THAT(part<std::vector<std::string>>(all, 1, 3), ElementsAre("", "dddd"));
  EXPECT_THAT(part<std::vector<bool>>(all, 0, 4), ElementsAre(true, false));
  EXPECT_THAT(part<std::vector<Numbers>>(all, 1, 5), ElementsAre(ragged[2], ragged[3]));
  EXPECT_THAT(part<std::vector<std::optional<int>>>(all, 0, 6), ElementsAre(some[0], some[1]));
}

TEST(Division, AnUnevenBatchSplitsItsListsAsItsTensors) {
  Called step{.wanted = 3};
  const auto all = step.with(of_shape({7}), Numbers{1, 2, 3, 4, 5, 6, 7});
  EXPECT_THAT(part<Numbers>(all, 0, 1), ElementsAre(1, 2, 3));
  EXPECT_THAT(part<Numbers>(all, 1, 1), ElementsAre(4, 5));
  EXPECT_THAT(part<Numbers>(all, 2, 1), ElementsAre(6, 7));
}

TEST(Division, AListWithAnotherNumberOfEntriesIsWhole) {
  Called step;
  const auto all = step.with(of_shape({4}), Numbers{1, 2, 3}, Numbers{}, std::string("four"));
  EXPECT_THAT(part<Numbers>(all, 1, 1), ElementsAre(1, 2, 3));
  EXPECT_THAT(part<Numbers>(all, 1, 2), IsEmpty());
  EXPECT_EQ(part<std::string>(all, 1, 3), "four") << "a text has no rows";
}

/// Columns, each of which has an entry a row. Some of a ragged list may be as long by chance.
TEST(Division, ListsInAListAreAllAlike) {
  using Columns = std::vector<Numbers>;
  Called step;
  const auto all = step.with(of_shape({4}), Columns{{1, 2, 3, 4}, {5, 6, 7, 8}},
                             Columns{{1, 2, 3, 4}, {5, 6}, {7}});
  EXPECT_THAT(part<Columns>(all, 1, 1), ElementsAre(Numbers{3, 4}, Numbers{7, 8}));
  EXPECT_THAT(part<Columns>(all, 1, 2), SizeIs(3));
  EXPECT_THAT(part<Columns>(all, 1, 2)[0], SizeIs(4));
}

TEST(Division, ListsAreSplitWhereverTheyAre) {
  struct Holder {
    std::tuple<int, Numbers> pair;
    std::variant<std::string, Numbers> either;
    std::map<std::string, Numbers> named;
    std::array<Numbers, 2> two;
    std::optional<Numbers> maybe;
  };
  const Numbers four{1, 2, 3, 4};
  Called step;
  const auto all = step.with(
      of_shape({4}), Holder{{7, four}, four, {{"a", four}, {"b", {5}}}, {four, four}, four});
  const auto got = part<Holder>(all, 1, 1);
  const Numbers half{3, 4};
  EXPECT_EQ(got.pair, std::tuple(7, half));
  EXPECT_EQ(std::get<Numbers>(got.either), half);
  EXPECT_EQ(got.named.at("a"), half);
  EXPECT_EQ(got.named.at("b"), Numbers{5});
  EXPECT_THAT(got.two, ElementsAre(half, half));
  EXPECT_EQ(got.maybe, half);
}

// ---- lists of tensors --------------------------------------------------------------------------

std::vector<Tensor> images(int count) {
  std::vector<Tensor> all;
  for (int i = 0; i < count; ++i) all.push_back(of_shape({3, 4 + i, 5}) + i);
  return all;
}

TEST(Division, ImagesOfSeveralSizesAreRows) {
  Called step;
  const auto all = step.with(images(5), of_shape({5}, at::kLong));
  const auto first = part<std::vector<Tensor>>(all, 0, 0);
  ASSERT_THAT(first, SizeIs(3));
  EXPECT_TRUE(at::equal(first[2], images(5)[2]));
  const auto second = part<std::vector<Tensor>>(all, 1, 0);
  ASSERT_THAT(second, SizeIs(2));
  EXPECT_TRUE(at::equal(second[1], images(5)[4]));
}

TEST(Division, SoAreStructsWithTensors) {
  std::vector<Sample> samples;
  for (const auto& image : images(4)) samples.push_back({image, std::to_string(image.size(1))});
  Called step;
  const auto all = step.with(samples, Numbers{1, 2, 3, 4}, of_shape({4}));
  const auto got = part<std::vector<Sample>>(all, 1, 0);
  ASSERT_THAT(got, SizeIs(2));
  EXPECT_EQ(got[0].name, "6");
  EXPECT_TRUE(at::equal(got[0].image, samples[2].image));
}

TEST(Division, NumbersInTensorsAreRowsAsWell) {
  Called step;
  const std::vector<Tensor> losses{at::scalar_tensor(1), at::scalar_tensor(2),
                                   at::scalar_tensor(3)};
  const auto all = step.with(losses, of_shape({3}));
  EXPECT_EQ(part<std::vector<Tensor>>(all, 1, 0).at(0).item<double>(), 3);
}

TEST(Division, TensorsThatHaveTheRowsAreSplitEach) {
  Called step;
  const auto all =
      step.with(std::vector<Tensor>{of_shape({4, 3}), of_shape({4}, at::kLong)}, of_shape({4}));
  const auto got = part<std::vector<Tensor>>(all, 1, 0);
  ASSERT_THAT(got, SizeIs(2));
  EXPECT_TRUE(at::equal(got[0], of_shape({4, 3}).narrow(0, 2, 2)));
  EXPECT_TRUE(at::equal(got[1], of_shape({4}, at::kLong).narrow(0, 2, 2)));
}

TEST(Division, OfAListInAListTheInnerOneMayHaveTheRows) {
  const std::vector<std::vector<Tensor>> views{images(4), images(4)};
  Called step;
  const auto all = step.with(views, of_shape({4}));
  const auto got = part<std::vector<std::vector<Tensor>>>(all, 1, 0);
  ASSERT_THAT(got, SizeIs(2));
  ASSERT_THAT(got[1], SizeIs(2));
  EXPECT_TRUE(at::equal(got[1][0], images(4)[2]));
}

TEST(Division, WhereBothMayBeMeantTheStepMustSay) {
  const std::vector<Tensor> list{of_shape({3, 2}), of_shape({3, 2}) + 1, of_shape({3, 2}) + 2};
  const auto y = of_shape({3});
  EXPECT_THAT(
      Called().refusal_of(list, y),
      AllOf(HasSubstr("argument 0 of the step is a list of 3 entries"), HasSubstr("Double [3, 2]"),
            HasSubstr("the batch has 3 rows (argument 1)"), HasSubstr("split_entries = {0}"),
            HasSubstr("split_axes = {{0, 0}}"), HasSubstr("non_split")));
  EXPECT_EQ(Called{.wanted = 1}.refusal_of(list, y), "accepted") << "nothing is divided";
  Called entries{.options = {.split_entries = {0}}};
  EXPECT_EQ(length<std::vector<Tensor>>(entries.with(list, y), 0, 0), 2u);
  Called axes{.options = {.split_axes = {{0, 0}}}};
  const auto each = part<std::vector<Tensor>>(axes.with(list, y), 0, 0);
  ASSERT_THAT(each, SizeIs(3));
  EXPECT_EQ(each[0].size(0), 2);
  Called whole{.options = {.non_split = {0}}};
  EXPECT_EQ(part<std::vector<Tensor>>(whole.with(list, y), 0, 0).at(0).size(0), 3);
  EXPECT_EQ(Called().refusal_of(std::vector<Tensor>{of_shape({2}), of_shape({2}, at::kLong)},
                                of_shape({2})),
            "accepted")
      << "tensors of several dtypes are no rows of one batch";
}

TEST(Division, AnEarlierCallTellsWhatIsMeant) {
  Called step;
  const std::vector<Tensor> three{of_shape({3, 2}), of_shape({3, 2}), of_shape({3, 2})};
  step.with(images(5), of_shape({5}));
  EXPECT_EQ(length<std::vector<Tensor>>(step.with(three, of_shape({3})), 0, 0), 2u);
  Called other;
  other.with(std::vector<Tensor>{of_shape({5, 2}), of_shape({5, 2}), of_shape({5, 2})},
             of_shape({5}));
  EXPECT_EQ(length<std::vector<Tensor>>(other.with(three, of_shape({3})), 0, 0), 3u);
  EXPECT_THAT(
      other.refusal_of(images(5), of_shape({5})),
      AllOf(HasSubstr("in earlier calls each tensor had them"), HasSubstr("split_entries = {0}")));
}

/// Undefined tensors say nothing of what defined ones are.
TEST(Division, TensorsMayBeUndefinedForATime) {
  const std::vector<Tensor> none(2), state{of_shape({8, 3}), of_shape({8, 3})};
  Called step;
  step.with(of_shape({8}), none);
  EXPECT_EQ(length<std::vector<Tensor>>(step.with(of_shape({8}), state), 0, 1), 2u);
  EXPECT_EQ(length<std::vector<Tensor>>(step.with(of_shape({8}), none), 0, 1), 2u);
  EXPECT_EQ(length<std::vector<Tensor>>(step.with(of_shape({2}), none), 0, 1), 2u);
}

/// Rows of several lengths, of which the last batch has one.
TEST(Division, AnEarlierCallTellsOfAListAloneToo) {
  Called step;
  EXPECT_EQ(
      step.with(std::vector<Tensor>{of_shape({5}), of_shape({9}), of_shape({7}), of_shape({4})})
          ->rows(),
      4);
  EXPECT_EQ(step.with(std::vector<Tensor>{of_shape({7}), of_shape({7})})->rows(), 2);
  EXPECT_EQ(step.with(std::vector<Tensor>{of_shape({6})})->rows(), 1);
}

/// A label for each: the tensors are no columns, though they have one shape.
TEST(Division, AListBesideAListOfTensorsMakesItDoubtful) {
  const std::vector<Tensor> sequences(8, of_shape({128}));
  EXPECT_THAT(Called().refusal_of(sequences, Numbers(8)), HasSubstr("8 or 128 rows"));
  const auto columns = Called().with(sequences);
  EXPECT_EQ(columns->rows(), 128);
  EXPECT_THAT(columns->division().doubtful(), ElementsAre(AllOf(HasSubstr("taken for a column"),
                                                                HasSubstr("split_entries = {0}"))));
}

TEST(Division, OneMicrobatchDividesNothing) {
  Called step{.wanted = 1};
  step.with(images(8));
  step.with(of_shape({4}), Numbers(4));
  step.with(of_shape({3}), Numbers(4));
  step.with(images(5), of_shape({5}));
  step.with(std::vector<Tensor>{of_shape({5, 2}), of_shape({5, 2})}, of_shape({5}));
}

TEST(Division, ListsOfReferencesAreWhole) {
  const std::vector<const Tensor*> pointers(4);
  const std::vector<std::shared_ptr<int>> shared(4);
  const torch::nn::SequentialImpl module;
  const auto all = Called().with(of_shape({4}), pointers, shared, module);
  EXPECT_EQ(all->rows(), 4);
}

/// What is in the entries is whole, so the entries are no rows.
TEST(Division, AListWhoseTensorsAreNamedIsWhole) {
  Called step{.options = {.non_split = {"1[].0"}}};
  EXPECT_EQ(length<std::vector<Sample>>(
                step.with(of_shape({4}), std::vector<Sample>(4, Sample{of_shape({2}), ""})), 0, 1),
            4u);
}

TEST(Division, WithoutOtherTensorsAListTellsIfOnlyOneNumberFits) {
  std::vector<Tensor> several{of_shape({1, 4}), of_shape({3, 4}), of_shape({2, 4})};
  Called step;
  EXPECT_EQ(step.with(several)->rows(), 3);
  EXPECT_EQ(Called().with(std::vector<Tensor>{of_shape({8, 3}), of_shape({8}, at::kLong)})->rows(),
            8);
  EXPECT_THAT(Called().refusal_of(images(8)),
              AllOf(HasSubstr("whether the batch has 3 or 8 rows"),
                    HasSubstr("split_entries = {0}"), HasSubstr("split_axes = {{0, 0}}")));
  EXPECT_THAT(Called().refusal_of(images(8), Numbers(8)), HasSubstr("3 or 8 rows"))
      << "the other list may be of anything";
  EXPECT_THAT(Called().refusal_of(images(8), several), HasSubstr("3 or 8 rows"));
  EXPECT_EQ((Called{.options = {.split_entries = {0}}}.with(images(8))->rows()), 8);
  EXPECT_EQ((Called{.options = {.split_axes = {{0, 0}}}}.with(images(8))->rows()), 3);
  step.options.split_entries = {0};
  EXPECT_EQ(step.with(images(2))->rows(), 2);
}

TEST(Division, ListsThatFitNoNumberOfRowsAreRefused) {
  EXPECT_THAT(Called().refusal_of(images(5), of_shape({4})),
              AllOf(HasSubstr("argument 0 of the step is a list of 5 entries"),
                    HasSubstr("the batch has 4 rows"), HasSubstr("non_split")));
  EXPECT_THAT(
      Called().refusal_of(std::vector<Tensor>{of_shape({1, 2}), of_shape({4, 2})}, images(5)),
      AllOf(HasSubstr("argument 1"), HasSubstr("3 or 5 rows")));
  EXPECT_THAT(Called().refusal_of(std::vector<Tensor>{of_shape({1}), of_shape({2, 2})},
                                  std::vector<Tensor>{of_shape({4}), of_shape({5}), of_shape({6})}),
              AllOf(HasSubstr("argument 1 of the step has 3 rows, argument 0 has 2")));
  EXPECT_THAT((Called{.options = {.split_entries = {0}}}.refusal_of(images(5), of_shape({4}))),
              HasSubstr("split_entries says that its entries are the rows"));
}

// ---- other containers --------------------------------------------------------------------------

TEST(Division, ContainersThatCannotBeSplitAreRefusedIfTheyMayBeRows) {
  const auto x = of_shape({4});
  const std::array<double, 4> array{1, 2, 3, 4};
  const std::map<int, double> map{{0, 1}, {1, 2}, {2, 3}, {3, 4}};
  const std::deque<double> deque{1, 2, 3, 4};
  const double plain[4] = {1, 2, 3, 4};
  const auto refused = AllOf(HasSubstr("argument 1 of the step is "),
                             HasSubstr("as many as the batch has rows, and cannot be split"),
                             HasSubstr("pass a std::vector"), HasSubstr("non_split"));
  EXPECT_THAT(Called().refusal_of(x, array), refused);
  EXPECT_THAT(Called().refusal_of(x, map), refused);
  EXPECT_THAT(Called().refusal_of(x, deque), refused);
  EXPECT_THAT(Called().refusal_of(x, plain), refused);
  StepOptions meant;
  meant.non_split = {1};
  EXPECT_EQ(Called{.options = meant}.refusal_of(x, array), "accepted");
  EXPECT_EQ(Called{.options = meant}.refusal_of(x, map), "accepted");
  EXPECT_EQ(Called{.options = meant}.refusal_of(x, deque), "accepted");
  EXPECT_EQ(Called{.options = meant}.refusal_of(x, plain), "accepted");
  EXPECT_EQ((Called{.wanted = 1}.refusal_of(x, array, map, deque)), "accepted");
  Called step;
  step.with(of_shape({6}), array, map, deque);
  EXPECT_EQ(step.refusal_of(x, array, map, deque), "accepted") << "another batch told";
}

TEST(Division, TensorsInArraysAndMapsAreSplit) {
  const std::array<Tensor, 2> pair{of_shape({2, 3}), of_shape({2})};
  const std::map<std::string, Tensor> named{{"x", of_shape({2, 3})}, {"y", of_shape({2})}};
  const std::unordered_map<int, Tensor> numbered{{4, of_shape({2, 3})}, {5, of_shape({2})}};
  Called step;
  const auto all = step.with(pair, named, numbered);
  EXPECT_EQ((part<std::array<Tensor, 2>>(all, 1, 0)[0].size(0)), 1);
  EXPECT_EQ((part<std::map<std::string, Tensor>>(all, 1, 1).at("y").item<double>()), 1);
  EXPECT_EQ((part<std::unordered_map<int, Tensor>>(all, 1, 2).at(5).item<double>()), 1);
}

TEST(Division, AListThatWasSplitHasAnEntryARow) {
  Called step;
  step.with(of_shape({4}), Numbers(4));
  EXPECT_THAT(step.refusal_of(of_shape({3}), Numbers(4)),
              AllOf(HasSubstr("argument 1 of the step is a list of 4 entries"),
                    HasSubstr("the batch has 3 rows"), HasSubstr("non_split")));
  EXPECT_EQ(step.refusal_of(of_shape({3}), Numbers()), "accepted");
  Called weights_of_classes;
  weights_of_classes.with(of_shape({4}), Numbers(3));
  EXPECT_EQ(length<Numbers>(weights_of_classes.with(of_shape({3}), Numbers(3)), 1, 1), 3u);
}

// ---- names -------------------------------------------------------------------------------------

TEST(Division, PartsAreNamedByTheWayToThem) {
  const Batch batch{of_shape({4, 3}), of_shape({4, 4}), Numbers(4), {{"ids", of_shape({4})}}};
  const auto rows_of_mask = [&](std::set<ArgumentName> names) {
    Called step{.options = {.non_split = std::move(names)}};
    return part<Batch>(step.with(batch), 0, 0).mask.size(0);
  };
  EXPECT_EQ(rows_of_mask({}), 2);
  EXPECT_EQ(rows_of_mask({"mask"}), 4);
  EXPECT_EQ(rows_of_mask({"0.mask"}), 4);
  EXPECT_EQ(rows_of_mask({"0.1"}), 4);
  EXPECT_EQ(rows_of_mask({"1.mask"}), 2) << "of another argument";
  EXPECT_EQ(rows_of_mask({"ask"}), 2);
  Called step{.options = {.non_split = {"weights", "extra"}}};
  const auto got = part<Batch>(step.with(batch), 0, 0);
  EXPECT_THAT(*got.weights, SizeIs(4));
  EXPECT_EQ(got.extra.at("ids").size(0), 4);
  EXPECT_EQ(got.tokens.size(0), 2);
  Called key{.options = {.non_split = {"0.extra.ids"}}};
  EXPECT_EQ(part<Batch>(key.with(batch), 0, 0).extra.at("ids").size(0), 4);
}

TEST(Division, MembersWithoutNamesHaveNumbers) {
  using Both = std::pair<Tensor, std::tuple<Tensor, Tensor>>;
  const Both both{of_shape({4}), {of_shape({4}), of_shape({2, 4})}};
  Called step{.options = {.non_split = {"0.second.0"}, .split_axes = {{"0.second.1", 1}}}};
  const auto got = part<Both>(step.with(both), 1, 0);
  EXPECT_EQ(got.first.size(0), 2);
  EXPECT_EQ(std::get<0>(got.second).size(0), 4);
  EXPECT_EQ(std::get<1>(got.second).size(1), 2);
}

TEST(Division, EntriesOfAListHaveOneName) {
  std::vector<Sample> samples;
  for (int i = 0; i < 2; ++i) samples.push_back({of_shape({3, 4}), "x"});
  Called step{.options = {.split_axes = {{"0[].image", 1}}}};
  const auto got = part<std::vector<Sample>>(step.with(samples, of_shape({4})), 1, 0);
  ASSERT_THAT(got, SizeIs(2));
  EXPECT_EQ(got[1].image.size(1), 2);
}

TEST(Division, NamesThatNameNothingAreWarnedOf) {
  Called step{.options = {.non_split = {"0.maks", 2}, .split_axes = {{0, 0}}}};
  const auto all = step.with(Batch{of_shape({4}), of_shape({4}), {}, {}}, Numbers(3));
  EXPECT_THAT(all->division().doubtful(),
              ElementsAre(AllOf(HasSubstr("non_split"), HasSubstr("'0.maks'")), HasSubstr("'2'")));
}

// ---- in words ----------------------------------------------------------------------------------

TEST(Division, IsTold) {
  const Batch batch{of_shape({4, 3}), of_shape({4, 4}), Numbers(4), {{"ids", of_shape({4})}}};
  Called step{.options = {.non_split = {"ids"}}};
  const auto all = step.with(batch, of_shape({4}, at::kLong), images(4), Numbers(3), 5);
  std::vector<std::string> told;
  for (const auto& [name, what, how, hint] : all->division().told()) {
    told.push_back(name + ": " + what + ", " + how + (hint.empty() ? "" : "; " + hint));
  }
  EXPECT_THAT(
      told,
      ElementsAre("0.tokens: Double [4, 3], along axis 0",
                  AllOf(HasSubstr("0.mask: Double [4, 4], along axis 0; axis 1 is as long"),
                        HasSubstr("non_split = {\"0.mask\"}")),
                  "0.weights: a list of 4 entries, an entry a row",
                  "0.extra.ids: Double [4], whole (non_split)",
                  AllOf(HasSubstr("1: Long [4], along axis 0; if these are offsets or indices"),
                        HasSubstr("non_split = {1}")),
                  "2: a list of 4 entries, the first tensor Double [3, 4, 5], an entry a row",
                  "3: a list of 3 entries, whole"));
  EXPECT_THAT(all->division().doubtful(), IsEmpty());
}

TEST(Division, WithoutTensorsAListIsWholeWithAWarning) {
  Called step;
  const auto all = step.with(std::vector<std::string>{"a", "b", "c"});
  EXPECT_EQ(all->rows(), -1);
  EXPECT_EQ(length<std::vector<std::string>>(all, 1, 0), 3u);
  EXPECT_THAT(all->division().doubtful(),
              ElementsAre(AllOf(HasSubstr("argument 0 of a step is a list of 3 entries"),
                                HasSubstr("split_entries = {0}"), HasSubstr("non_split"))));
  Called said{.options = {.split_entries = {0}}};
  EXPECT_EQ(
      length<std::vector<std::string>>(said.with(std::vector<std::string>{"a", "b", "c"}), 1, 0),
      1u);
}

/// Values of rows must not make a plan of its own for each batch; others may.
TEST(Division, RowsAreNoPartOfThePlansKey) {
  Called step;
  const auto key = [&](const Numbers& rows, const Numbers& others) {
    return step.with(of_shape({4}), rows, others)->preview_key(0);
  };
  EXPECT_EQ(key({1, 2, 3, 4}, {1}), key({5, 6, 7, 8}, {1}));
  EXPECT_NE(key({1, 2, 3, 4}, {1}), key({1, 2, 3, 4}, {2}));
}

}  // namespace division_test
}  // namespace smp
