// smp/codec.h: how values cross ranks (paper §4.1, App. G.1). Plain bytes travel in one string,
// tensors in a list beside it, so gradients find their way back through any structure.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Scalar.h>
#include <c10/util/ArrayRef.h>

#include <array>
#include <complex>
#include <concepts>
#include <cstdint>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "smp/detail/call.h"
#include "smp/detail/export.h"
#include "smp/detail/fields.h"
#include "smp/detail/outline.h"

namespace torch::data {
template <typename Data, typename Target>
struct Example;  // torch/data/example.h
}

namespace smp {

/// Takes values of type T apart and puts them together again. Ready for: numbers, bool, enums,
/// strings, tensors (also undefined ones), at::Scalar, torch::Device, optional, vector, array,
/// pair, tuple, map, unordered_map, variant, torch::data::Example, any nesting of these, and
/// aggregate structs of them (no base class, no C array, at most 32 members). Specialise it for a
/// type of your own:
/// @code
///   template <> struct smp::Codec<Money> {
///     static void encode(smp::Writer& out, const Money& money) { out.put(money.cents()); }
///     static Money decode(smp::Reader& in) { return Money(in.get<std::int64_t>()); }
///   };
/// @endcode
/// Every value takes at least one byte, so a length can be checked before memory is taken.
///
/// As an argument of a step, or a part of one, such a value is split as what it writes by
/// Writer::put() (smp/step.h). A codec whose values are batches in a form of their own (ragged
/// rows and their offsets, a graph) says itself what a microbatch gets of one:
/// @code
///     static Rags slice(const Rags& batch, int microbatch, int microbatches);
///     static std::int64_t rows(const Rags& batch) { return batch.size(); }  // if it has rows
/// @endcode
/// Rows of a microbatch are those of smp::microbatch_rows() where rows() counts them: then the
/// batch has as many, and what slice() returns is of these. Without rows() the codec divides as it
/// likes, and microbatches count by the rows of the other arguments; equally, if there are none.
/// slice() runs on pp_rank 0, for all microbatches before the first begins; tensors that it cuts
/// out keep their history. What it throws is thrown by the step, with the argument's name.
template <class T>
struct Codec {
  using SmpMissing = void;
};

namespace detail {

template <class T>
concept NamesSlice = requires {
  &Codec<T>::slice;
};
template <class T>
concept NamesRows = requires {
  &Codec<T>::rows;
};
/// Types whose Codec says what a microbatch gets.
template <class T>
concept SlicedByCodec = requires(const T& value) {
  { Codec<T>::slice(value, 0, 1) } -> std::same_as<T>;
};
template <class T>
concept CountedByCodec = requires(const T& value) {
  { Codec<T>::rows(value) } -> std::convertible_to<std::int64_t>;
};

template <class T>
std::vector<Packet> packed_slices(Packet whole, int microbatches);

}  // namespace detail

/// Collects what a Codec writes. Bytes are those of this machine, because ranks run the same
/// binary; tensors are kept with their history and not copied.
class Writer {
 public:
  Writer() = default;
  /// Notes in `outline` as well of which tensors and containers the values are built. It must
  /// outlive the writer.
  explicit Writer(detail::Outline& outline) : outline_(&outline) {}

  template <class T>
  void put(const T& value) {
    static_assert(!detail::NamesSlice<T> || detail::SlicedByCodec<T>,
                  "smp: a codec's slice() is `static T slice(const T&, int microbatch, int "
                  "microbatches)`; see smp/codec.h");
    static_assert(!detail::NamesRows<T> || detail::CountedByCodec<T>,
                  "smp: a codec's rows() is `static std::int64_t rows(const T&)`; see smp/codec.h");
    static_assert(!detail::NamesRows<T> || detail::SlicedByCodec<T>,
                  "smp: a codec with rows() needs slice(); see smp/codec.h");
    if constexpr (detail::SlicedByCodec<T>) {
      if (outline_ != nullptr) return put_sliced(value);
    }
    Codec<T>::encode(*this, value);
  }
  void bytes(const void* data, std::size_t count) {
    packet_.bytes.append(static_cast<const char*>(data), count);
  }
  /// Writes the bits of a trivially copyable value.
  template <class T>
  void raw(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    bytes(&value, sizeof value);
  }
  void count(std::size_t value) { raw(static_cast<std::uint64_t>(value)); }
  void tensor(const at::Tensor& tensor) {
    if (outline_ != nullptr && tensor.defined()) outline_->add_tensor(place());
    packet_.tensors.push_back(tensor);
  }

  Packet take() && { return std::move(packet_); }

  /// The notes that are taken, or nullptr.
  detail::Outline* outline() const noexcept { return outline_; }
  /// Returns the place of what is written next.
  detail::PacketPlace place() const noexcept {
    return {packet_.bytes.size(), packet_.tensors.size()};
  }

 private:
  /// Writes a value as one part, whatever is in it.
  template <class T>
  void put_sliced(const T& value) {
    detail::SliceRule rule{&typeid(T), &detail::packed_slices<T>};
    if constexpr (detail::CountedByCodec<T>) rule.rows = Codec<T>::rows(value);
    const auto begin = place();
    auto* const outline = std::exchange(outline_, nullptr);
    Codec<T>::encode(*this, value);
    outline_ = outline;
    outline->add_own(rule, begin, place());
  }

  Packet packet_;
  detail::Outline* outline_ = nullptr;
};

/// Gives back, in the same order, what a Writer collected.
/// @throws InternalError if the packet holds less or something else than is asked for.
class SMP_API Reader {
 public:
  explicit Reader(Packet& packet) : packet_(packet) {}

  template <class T>
  T get() {
    return Codec<T>::decode(*this);
  }
  void bytes(void* data, std::size_t count);
  template <class T>
  T raw() {
    static_assert(std::is_trivially_copyable_v<T>);
    alignas(T) unsigned char bits[sizeof(T)];
    bytes(bits, sizeof bits);
    T value;
    std::memcpy(static_cast<void*>(&value), bits, sizeof bits);
    return value;
  }
  bool flag();
  /// Reads the number of values that follow, which is at most the number of bytes left.
  std::size_t count();
  at::Tensor tensor();
  /// Checks that everything was read. @throws InternalError  bytes or tensors are left over.
  void finish() const;

  [[noreturn]] void fail(const std::string& what) const;

 private:
  Packet& packet_;
  std::size_t offset_ = 0;
  std::size_t next_tensor_ = 0;
};

namespace detail {

/// Returns what each microbatch gets of a packed value, packed.
template <class T>
std::vector<Packet> packed_slices(Packet whole, int microbatches) {
  Reader reader(whole);
  const T value = reader.get<T>();
  std::vector<Packet> parts;
  for (int microbatch = 0; microbatch < microbatches; ++microbatch) {
    Writer writer;
    writer.put<T>(Codec<T>::slice(value, microbatch, microbatches));
    parts.push_back(std::move(writer).take());
  }
  return parts;
}

/// The types a composite value consists of.
template <class... T>
struct Parts {};

template <class T>
concept HasCodec = !requires {
  typename Codec<T>::SmpMissing;
};
template <class T>
concept Composite = requires {
  typename Codec<T>::SmpParts;
};

template <class T, class... Seen>
consteval bool crosses();

template <class T, class... Seen, class... Part>
consteval bool all_cross(Parts<Part...>) {
  if constexpr (std::is_aggregate_v<T> && !requires { T{std::declval<Part>()...}; }) {
    return false;
  } else {
    return (crosses<Part, T, Seen...>() && ...);
  }
}

/// True if values of T can cross ranks. `Seen` are the enclosing types: a struct may hold a vector
/// of itself.
template <class T, class... Seen>
consteval bool crosses() {
  if constexpr (std::is_reference_v<T> || std::is_pointer_v<T> || std::is_void_v<T>) {
    return false;
  } else if constexpr ((std::is_same_v<T, Seen> || ...)) {
    return true;
  } else if constexpr (!HasCodec<T>) {
    return false;
  } else if constexpr (Composite<T>) {
    return all_cross<T, Seen...>(typename Codec<T>::SmpParts{});
  } else {
    return true;
  }
}

template <class T>
concept PlainBits =
    (std::is_arithmetic_v<T> && !std::is_same_v<T, bool>) || std::is_enum_v<T> ||
    std::is_same_v<T, c10::Half> || std::is_same_v<T, c10::BFloat16> ||
    std::is_same_v<T, c10::complex<float>> || std::is_same_v<T, c10::complex<double>> ||
    std::is_same_v<T, std::complex<float>> || std::is_same_v<T, std::complex<double>>;

template <class References>
struct FieldParts;
template <class... Field>
struct FieldParts<std::tuple<Field&...>> {
  using type = Parts<Field...>;
};

/// Notes, while it lives, that what is written are the entries of a container.
class ContainerNote {
 public:
  ContainerNote(Writer& out, PartKind kind, std::size_t entries) : out_(out) {
    if (out.outline() != nullptr) out.outline()->open(kind, entries, out.place());
  }
  ~ContainerNote() {
    if (out_.outline() != nullptr) out_.outline()->close(out_.place());
  }
  ContainerNote(const ContainerNote&) = delete;
  ContainerNote& operator=(const ContainerNote&) = delete;

  /// Begins the next entry of a list.
  void begin_entry() const {
    if (out_.outline() != nullptr) out_.outline()->begin_entry(out_.place());
  }

 private:
  Writer& out_;
};

/// Writes a member of a composite value. @param name  empty: it has a number only
template <class T>
void put_member(Writer& out, std::string_view name, std::size_t number, const T& value) {
  if (out.outline() != nullptr) out.outline()->enter(name, number);
  out.put(value);
  if (out.outline() != nullptr) out.outline()->leave();
}

/// Writes `values` in order; an empty list still takes a byte.
/// @param names  one each; none: the values have numbers only
template <class... T>
void put_all(Writer& out, c10::ArrayRef<std::string_view> names, const T&... values) {
  if constexpr (sizeof...(T) == 0) out.raw(char{0});
  std::size_t number = 0;
  [[maybe_unused]] const auto put = [&](const auto& value) {
    put_member(out, names.empty() ? std::string_view() : names[number], number, value);
    ++number;
  };
  (put(values), ...);
}
template <class Whole, class... T>
Whole get_all(Reader& in, Parts<T...>) {
  if constexpr (sizeof...(T) == 0) in.raw<char>();
  return Whole{in.get<T>()...};
}

/// Returns a key of a map as the name of its entry; empty if it is no text and no whole number.
template <class Key>
std::string name_of_key(const Key& key) {
  if constexpr (std::is_convertible_v<const Key&, std::string_view>) {
    return std::string(std::string_view(key));
  } else if constexpr (std::is_integral_v<Key>) {
    return std::to_string(key);
  } else {
    return {};
  }
}

template <class Map>
struct MapCodec {
  using SmpParts = Parts<typename Map::key_type, typename Map::mapped_type>;
  static void encode(Writer& out, const Map& map) {
    const ContainerNote note(out, PartKind::kMap, map.size());
    out.count(map.size());
    std::size_t number = 0;
    for (const auto& [key, value] : map) {
      put_key(out, key);
      const bool noted = out.outline() != nullptr;
      put_member(out, noted ? name_of_key(key) : std::string(), number++, value);
    }
  }
  static Map decode(Reader& in) {
    Map map;
    for (auto left = in.count(); left > 0; --left) {
      auto key = in.get<typename Map::key_type>();
      map.insert_or_assign(std::move(key), in.get<typename Map::mapped_type>());
    }
    return map;
  }

 private:
  /// Writes a key without notes: it has no rows.
  static void put_key(Writer& out, const typename Map::key_type& key) {
    if (out.outline() == nullptr) return out.put(key);
    Writer apart;
    apart.put(key);
    auto packet = std::move(apart).take();
    out.bytes(packet.bytes.data(), packet.bytes.size());
    for (const auto& tensor : packet.tensors) out.tensor(tensor);
  }
};

template <class T>
struct HoldsOnlyTensors : std::is_same<T, at::Tensor> {};
template <class... T>
struct HoldsOnlyTensors<Parts<T...>>
    : std::bool_constant<sizeof...(T) != 0 && (HoldsOnlyTensors<T>::value && ...)> {};
template <class First, class Second>
struct HoldsOnlyTensors<std::pair<First, Second>> : HoldsOnlyTensors<Parts<First, Second>> {};
template <class... T>
struct HoldsOnlyTensors<std::tuple<T...>> : HoldsOnlyTensors<Parts<T...>> {};
template <class T, std::size_t N>
struct HoldsOnlyTensors<std::array<T, N>>
    : std::bool_constant<N != 0 && HoldsOnlyTensors<T>::value> {};
template <class Data, class Target>
struct HoldsOnlyTensors<torch::data::Example<Data, Target>>
    : HoldsOnlyTensors<Parts<Data, Target>> {};
template <class Data>
struct HoldsOnlyTensors<torch::data::Example<Data, void>> : HoldsOnlyTensors<Data> {};
/// A struct with a Codec of the user's does not count, because that may write anything.
template <class T>
requires(PlainStruct<T>&& Composite<T>) struct HoldsOnlyTensors<T>
    : HoldsOnlyTensors<typename FieldParts<decltype(fields_of(std::declval<T&>()))>::type> {
};

}  // namespace detail

/// True if every T holds the same number of tensors and nothing else: a tensor, or pairs, tuples,
/// arrays and aggregate structs of them.
template <class T>
inline constexpr bool holds_only_tensors_v = detail::HoldsOnlyTensors<T>::value;

/// True if values of T can cross ranks. References and pointers cannot.
template <class T>
inline constexpr bool is_crossable_v = detail::crosses<T>();
template <class T>
struct is_crossable : std::bool_constant<is_crossable_v<T>> {};

template <class T>
requires detail::PlainBits<T>
struct Codec<T> {
  static void encode(Writer& out, const T& value) { out.raw(value); }
  static T decode(Reader& in) { return in.raw<T>(); }
};

template <>
struct Codec<bool> {
  static void encode(Writer& out, bool value) { out.raw(value ? char{1} : char{0}); }
  static bool decode(Reader& in) { return in.flag(); }
};

template <>
struct SMP_API Codec<std::string> {
  static void encode(Writer& out, const std::string& text);
  static std::string decode(Reader& in);
};

template <>
struct SMP_API Codec<at::Tensor> {
  static void encode(Writer& out, const at::Tensor& tensor);
  static at::Tensor decode(Reader& in);
};

template <>
struct SMP_API Codec<at::Scalar> {
  static void encode(Writer& out, const at::Scalar& scalar);
  static at::Scalar decode(Reader& in);
};

template <>
struct SMP_API Codec<c10::Device> {
  static void encode(Writer& out, const c10::Device& device);
  static c10::Device decode(Reader& in);
};

template <class T>
struct Codec<std::optional<T>> {
  using SmpParts = detail::Parts<T>;
  static void encode(Writer& out, const std::optional<T>& value) {
    out.put(value.has_value());
    if (value) out.put(*value);
  }
  static std::optional<T> decode(Reader& in) {
    if (!in.flag()) return std::nullopt;
    return std::optional<T>(in.get<T>());
  }
};

template <class T>
struct Codec<std::vector<T>> {
  using SmpParts = detail::Parts<T>;
  static void encode(Writer& out, const std::vector<T>& values) {
    const detail::ContainerNote note(out, detail::PartKind::kList, values.size());
    out.count(values.size());
    for (const T& value : values) {
      note.begin_entry();
      out.put<T>(value);
    }
  }
  static std::vector<T> decode(Reader& in) {
    const auto count = in.count();
    std::vector<T> values;
    values.reserve(count);
    for (std::size_t i = 0; i < count; ++i) values.push_back(in.get<T>());
    return values;
  }
};

template <class T, std::size_t N>
struct Codec<std::array<T, N>> {
  using SmpParts = std::conditional_t<N == 0, detail::Parts<>, detail::Parts<T>>;
  static void encode(Writer& out, const std::array<T, N>& values) {
    const detail::ContainerNote note(out, detail::PartKind::kArray, N);
    std::apply([&](const auto&... value) { detail::put_all(out, {}, value...); }, values);
  }
  static std::array<T, N> decode(Reader& in) {
    if constexpr (N == 0) in.raw<char>();
    return [&]<std::size_t... I>(std::index_sequence<I...>) {
      return std::array<T, N>{(static_cast<void>(I), in.get<T>())...};
    }
    (std::make_index_sequence<N>());
  }
};

template <class First, class Second>
struct Codec<std::pair<First, Second>> {
  using SmpParts = detail::Parts<First, Second>;
  static void encode(Writer& out, const std::pair<First, Second>& value) {
    detail::put_all(out, {"first", "second"}, value.first, value.second);
  }
  static std::pair<First, Second> decode(Reader& in) {
    return detail::get_all<std::pair<First, Second>>(in, SmpParts{});
  }
};

/// The codec of a data loader's example: data and target, or data alone.
template <class Data, class Target>
struct Codec<torch::data::Example<Data, Target>> {
  using SmpParts = detail::Parts<Data, Target>;
  static void encode(Writer& out, const torch::data::Example<Data, Target>& value) {
    detail::put_all(out, {"data", "target"}, value.data, value.target);
  }
  static torch::data::Example<Data, Target> decode(Reader& in) {
    return detail::get_all<torch::data::Example<Data, Target>>(in, SmpParts{});
  }
};

template <class Data>
struct Codec<torch::data::Example<Data, void>> {
  using SmpParts = detail::Parts<Data>;
  static void encode(Writer& out, const torch::data::Example<Data, void>& value) {
    detail::put_all(out, {"data"}, value.data);
  }
  static torch::data::Example<Data, void> decode(Reader& in) {
    return detail::get_all<torch::data::Example<Data, void>>(in, SmpParts{});
  }
};

template <class... T>
struct Codec<std::tuple<T...>> {
  using SmpParts = detail::Parts<T...>;
  static void encode(Writer& out, const std::tuple<T...>& values) {
    std::apply([&](const auto&... value) { detail::put_all(out, {}, value...); }, values);
  }
  static std::tuple<T...> decode(Reader& in) {
    return detail::get_all<std::tuple<T...>>(in, SmpParts{});
  }
};

template <class Key, class Value, class Compare>
struct Codec<std::map<Key, Value, Compare>> : detail::MapCodec<std::map<Key, Value, Compare>> {};
template <class Key, class Value, class Hash, class Equal>
struct Codec<std::unordered_map<Key, Value, Hash, Equal>>
    : detail::MapCodec<std::unordered_map<Key, Value, Hash, Equal>> {};

template <class... T>
struct Codec<std::variant<T...>> {
  using Value = std::variant<T...>;
  using SmpParts = detail::Parts<T...>;
  static void encode(Writer& out, const Value& value) {
    if (value.valueless_by_exception()) throw std::bad_variant_access();
    out.count(value.index());
    std::visit([&](const auto& held) { out.put(held); }, value);
  }
  static Value decode(Reader& in) {
    return alternative<0>(in, static_cast<std::size_t>(in.raw<std::uint64_t>()));
  }

 private:
  template <std::size_t I>
  static Value alternative(Reader& in, std::size_t index) {
    if constexpr (I == sizeof...(T)) {
      in.fail("a variant has no such alternative");
    } else {
      if (index != I) return alternative<I + 1>(in, index);
      return Value(std::in_place_index<I>, in.get<std::variant_alternative_t<I, Value>>());
    }
  }
};

template <class T>
requires detail::PlainStruct<T>
struct Codec<T> {
  using SmpParts =
      typename detail::FieldParts<decltype(detail::fields_of(std::declval<T&>()))>::type;
  static void encode(Writer& out, const T& value) {
    std::apply(
        [&](const auto&... field) { detail::put_all(out, detail::kFieldNames<T>, field...); },
        detail::fields_of(value));
  }
  static T decode(Reader& in) { return detail::get_all<T>(in, SmpParts{}); }
};

}  // namespace smp
