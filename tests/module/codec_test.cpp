// Values cross ranks unchanged; damaged ones are refused before memory is taken for them.
#include "smp/codec.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>

#include "smp/error.h"

namespace {

using smp::is_crossable_v;

enum class Colour : std::uint16_t { kRed = 3, kBlue = 700 };

struct Empty {
  bool operator==(const Empty&) const = default;
};
struct Cache {
  at::Tensor key;
  std::array<at::Tensor, 2> pair;
  std::int64_t step = 0;
  std::string tag;
  std::vector<std::optional<at::Tensor>> extra;
};
struct Tree {
  int value = 0;
  std::vector<Tree> children;
  bool operator==(const Tree&) const = default;
};
struct WithBase : Tree {
  int more;
};
struct WithArray {
  float values[3];
};
struct WithReference {
  int& value;
};
struct WithPointer {
  std::unique_ptr<int> value;
};
class Money {
 public:
  explicit Money(std::int64_t cents) : cents_(cents) {}
  std::int64_t cents() const { return cents_; }

 private:
  std::int64_t cents_;
};
struct Invoice {
  Money total;
  std::string text;
};

}  // namespace

template <>
struct smp::Codec<Money> {
  static void encode(Writer& out, const Money& money) { out.put(money.cents()); }
  static Money decode(Reader& in) { return Money(in.get<std::int64_t>()); }
};

namespace {

template <class T>
smp::Packet pack(const T& value) {
  smp::Writer out;
  out.put(value);
  return std::move(out).take();
}

template <class T>
T unpack(smp::Packet packet) {
  smp::Reader in(packet);
  T value = in.get<T>();
  in.finish();
  return value;
}

template <class T>
T crossed(const T& value) {
  return unpack<T>(pack(value));
}

template <class T>
void expect_crosses(const T& value) {
  static_assert(is_crossable_v<T>);
  EXPECT_EQ(crossed(value), value);
}

TEST(Codec, KeepsNumbersAndEnums) {
  expect_crosses(true);
  expect_crosses('x');
  expect_crosses(std::int64_t{-1} << 60);
  expect_crosses(1.5f);
  expect_crosses(-0.1);
  expect_crosses(std::complex<double>(1, -2));
  expect_crosses(Colour::kBlue);
  expect_crosses(at::kDouble);
  expect_crosses(c10::Device(at::kCUDA, 3));
}

TEST(Codec, KeepsContainers) {
  expect_crosses(std::string("a\0b", 3));
  expect_crosses(std::string());
  expect_crosses(std::optional<int>());
  expect_crosses(std::optional<int>(4));
  expect_crosses(std::vector<bool>{true, false, true});
  expect_crosses(std::vector<std::string>{"one", ""});
  expect_crosses(std::array<int, 3>{1, 2, 3});
  expect_crosses(std::array<int, 0>{});
  expect_crosses(std::pair<int, std::string>(1, "x"));
  expect_crosses(std::tuple<>());
  expect_crosses(std::tuple<int, std::tuple<double>>(1, 2.0));
  expect_crosses(std::map<std::string, std::vector<int>>{{"a", {1}}, {"b", {}}});
  expect_crosses(std::unordered_map<int, std::string>{{1, "x"}, {2, "y"}});
  expect_crosses(std::variant<int, std::string, std::monostate>("text"));
  expect_crosses(std::variant<int, std::string, std::monostate>(std::monostate()));
}

TEST(Codec, KeepsStructsWithoutAMacro) {
  expect_crosses(Empty());
  expect_crosses(std::vector<Empty>(1000));
  expect_crosses(Tree{1, {{2, {}}, {3, {{4, {}}}}}});
  const auto key = at::ones({2});
  const auto copy = crossed(Cache{key, {key, {}}, 7, "t", {std::nullopt, key}});
  EXPECT_TRUE(copy.key.is_same(key));
  EXPECT_FALSE(copy.pair[1].defined());
  EXPECT_EQ(copy.step, 7);
  EXPECT_EQ(copy.tag, "t");
  EXPECT_FALSE(copy.extra[0].has_value());
  EXPECT_TRUE(copy.extra[1]->is_same(key));
}

TEST(Codec, CarriesTensorsBesideTheBytes) {
  const auto tensor = at::ones({2}).requires_grad_();
  const auto packet = pack(std::vector<at::Tensor>{tensor, {}, tensor});
  EXPECT_EQ(packet.tensors.size(), 2u);
  const auto copies = unpack<std::vector<at::Tensor>>(packet);
  EXPECT_TRUE(copies[0].is_same(tensor));
  EXPECT_FALSE(copies[1].defined());
}

TEST(Codec, KeepsScalarsOfEveryKind) {
  EXPECT_TRUE(crossed(at::Scalar(true)).isBoolean());
  EXPECT_EQ(crossed(at::Scalar(std::int64_t{5})).toLong(), 5);
  EXPECT_EQ(crossed(at::Scalar(0.5)).toDouble(), 0.5);
  EXPECT_EQ(crossed(at::Scalar(c10::complex<double>(1, 2))).toComplexDouble().imag(), 2);
}

TEST(Codec, TakesTypesThatTheUserDescribes) {
  static_assert(is_crossable_v<Invoice>);
  const auto copy = crossed(Invoice{Money(250), "coffee"});
  EXPECT_EQ(copy.total.cents(), 250);
  EXPECT_EQ(copy.text, "coffee");
}

TEST(Codec, KnowsWhatCannotCross) {
  static_assert(!is_crossable_v<int*>);
  static_assert(!is_crossable_v<int&>);
  static_assert(!is_crossable_v<std::function<void()>>);
  static_assert(!is_crossable_v<std::shared_ptr<int>>);
  static_assert(!is_crossable_v<std::vector<std::function<void()>>>);
  static_assert(!is_crossable_v<std::map<int, int*>>);
  static_assert(!is_crossable_v<std::variant<int, std::unique_ptr<int>>>);
  static_assert(!is_crossable_v<WithBase>);
  static_assert(!is_crossable_v<WithArray>);
  static_assert(!is_crossable_v<WithReference>);
  static_assert(!is_crossable_v<WithPointer>);
}

TEST(Codec, RefusesEveryTruncation) {
  const auto whole = pack(Cache{at::ones({1}), {}, 1, "tag", {at::ones({1})}});
  for (std::size_t length = 0; length < whole.bytes.size(); ++length) {
    auto cut = whole;
    cut.bytes.resize(length);
    EXPECT_THROW(unpack<Cache>(cut), smp::InternalError) << length;
  }
  auto cut = whole;
  cut.tensors.pop_back();
  EXPECT_THROW(unpack<Cache>(cut), smp::InternalError);
}

TEST(Codec, RefusesWhatIsLeftOver) {
  auto packet = pack(1);
  packet.bytes += 'x';
  EXPECT_THROW(unpack<int>(packet), smp::InternalError);
  packet = pack(1);
  packet.tensors.push_back(at::ones({1}));
  EXPECT_THROW(unpack<int>(packet), smp::InternalError);
}

TEST(Codec, RefusesHugeLengthsBeforeAllocating) {
  const auto huge = pack(std::uint64_t{1} << 62);
  EXPECT_THROW(unpack<std::string>(huge), smp::InternalError);
  EXPECT_THROW(unpack<std::vector<double>>(huge), smp::InternalError);
  EXPECT_THROW((unpack<std::map<int, int>>(huge)), smp::InternalError);
}

TEST(Codec, RefusesFlagsAndAlternativesThatDoNotExist) {
  EXPECT_THROW(unpack<bool>(pack(char{2})), smp::InternalError);
  EXPECT_THROW(unpack<std::optional<int>>(pack(char{2})), smp::InternalError);
  EXPECT_THROW((unpack<std::variant<int, float>>(pack(std::uint64_t{2}))), smp::InternalError);
}

}  // namespace
