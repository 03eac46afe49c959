// smp/detail/fields.h: the members of a plain struct, found without a macro.
// Not Boost.PFR: its member count makes g++ 12 stop with an internal error for a struct that holds
// a std::array of tensors. Counting by T(a, b, ...) instead of T{a, b, ...} also sees C arrays,
// because parentheses never reach into a member.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

namespace smp::detail {

inline constexpr std::size_t kMostFields = 32;

/// Stands for any member of T in T(any, any, ...).
template <class T>
struct AnyCopied {
  template <class U>
  requires(!std::is_same_v<U, T>) operator U&() const noexcept;
};
template <class T>
struct AnyMoved {
  template <class U>
  requires(!std::is_same_v<U, T>) operator U() const noexcept;
};
template <class T>
using AnyField = std::conditional_t<std::is_copy_constructible_v<T>, AnyCopied<T>, AnyMoved<T>>;

/// Converts to any proper base of T: if it can initialise T's first element, T has a base class.
template <class T>
struct BaseOf {
  template <class U>
  requires(std::is_base_of_v<U, T> && !std::is_same_v<U, T>) operator U() const;
};

template <class T, std::size_t N>
consteval bool takes_fields() {
  return []<std::size_t... I>(std::index_sequence<I...>) {
#ifdef __cpp_aggregate_paren_init
    return requires { T((static_cast<void>(I), AnyField<T>{})...); };
#else  // clang before 16: no C arrays
    return requires { T{(static_cast<void>(I), AnyField<T>{})...}; };
#endif
  }
  (std::make_index_sequence<N>());
}

template <class T, std::size_t N = kMostFields + 1>
consteval std::size_t count_fields() {
  if constexpr (std::is_empty_v<T>) {
    return 0;
  } else if constexpr (N == 0 || takes_fields<T, N>()) {
    return N;
  } else {
    return count_fields<T, N - 1>();
  }
}

template <class T, std::size_t N>
consteval bool braces_take_more() {
  return []<std::size_t... I>(std::index_sequence<I...>) {
    return requires { T{(static_cast<void>(I), AnyField<T>{})...}; };
  }
  (std::make_index_sequence<N + 1>());
}

/// A struct whose members can be taken apart: an aggregate of at most kMostFields members, without
/// a base class, and not a std::array.
// clang-format off
template <class T>
concept PlainStruct =
    std::is_class_v<T> && std::is_aggregate_v<T> && !requires { std::tuple_size<T>::value; } &&
    !requires { T{BaseOf<T>{}}; } && count_fields<T>() <= kMostFields &&
    !braces_take_more<T, count_fields<T>()>();
// clang-format on

#define SMP_FIELDS(N, ...)        \
  if constexpr (kCount == N) {    \
    auto& [__VA_ARGS__] = value;  \
    return std::tie(__VA_ARGS__); \
  }

/// Returns references to the members of `value`, in order.
template <class T>
requires PlainStruct<std::remove_const_t<T>>
constexpr auto fields_of(T& value) {
  constexpr auto kCount = count_fields<std::remove_const_t<T>>();
  if constexpr (kCount == 0) return std::tuple<>();
  SMP_FIELDS(1, a1)
  SMP_FIELDS(2, a1, a2)
  SMP_FIELDS(3, a1, a2, a3)
  SMP_FIELDS(4, a1, a2, a3, a4)
  SMP_FIELDS(5, a1, a2, a3, a4, a5)
  SMP_FIELDS(6, a1, a2, a3, a4, a5, a6)
  SMP_FIELDS(7, a1, a2, a3, a4, a5, a6, a7)
  SMP_FIELDS(8, a1, a2, a3, a4, a5, a6, a7, a8)
  SMP_FIELDS(9, a1, a2, a3, a4, a5, a6, a7, a8, a9)
  SMP_FIELDS(10, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10)
  SMP_FIELDS(11, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11)
  SMP_FIELDS(12, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12)
  SMP_FIELDS(13, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13)
  SMP_FIELDS(14, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14)
  SMP_FIELDS(15, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14, a15)
  SMP_FIELDS(16, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14, a15, a16)
  SMP_FIELDS(17, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14, a15, a16, a17)
  SMP_FIELDS(18, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14, a15, a16, a17, a18)
  SMP_FIELDS(19, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14, a15, a16, a17, a18,
             a19)
  SMP_FIELDS(20, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14, a15, a16, a17, a18,
             a19, a20)
  SMP_FIELDS(21, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14, a15, a16, a17, a18,
             a19, a20, a21)
  SMP_FIELDS(22, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14, a15, a16, a17, a18,
             a19, a20, a21, a22)
  SMP_FIELDS(23, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14, a15, a16, a17, a18,
             a19, a20, a21, a22, a23)
  SMP_FIELDS(24, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14, a15, a16, a17, a18,
             a19, a20, a21, a22, a23, a24)
  SMP_FIELDS(25, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14, a15, a16, a17, a18,
             a19, a20, a21, a22, a23, a24, a25)
  SMP_FIELDS(26, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14, a15, a16, a17, a18,
             a19, a20, a21, a22, a23, a24, a25, a26)
  SMP_FIELDS(27, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14, a15, a16, a17, a18,
             a19, a20, a21, a22, a23, a24, a25, a26, a27)
  SMP_FIELDS(28, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14, a15, a16, a17, a18,
             a19, a20, a21, a22, a23, a24, a25, a26, a27, a28)
  SMP_FIELDS(29, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14, a15, a16, a17, a18,
             a19, a20, a21, a22, a23, a24, a25, a26, a27, a28, a29)
  SMP_FIELDS(30, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14, a15, a16, a17, a18,
             a19, a20, a21, a22, a23, a24, a25, a26, a27, a28, a29, a30)
  SMP_FIELDS(31, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14, a15, a16, a17, a18,
             a19, a20, a21, a22, a23, a24, a25, a26, a27, a28, a29, a30, a31)
  SMP_FIELDS(32, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14, a15, a16, a17, a18,
             a19, a20, a21, a22, a23, a24, a25, a26, a27, a28, a29, a30, a31, a32)
}
#undef SMP_FIELDS

// ---- names -------------------------------------------------------------------------------------

#if defined(__GNUC__) && !defined(__clang__)  // clang before 18 takes no address of a member here

/// Room for a T that is never made: the addresses of its members are known all the same.
template <class T>
union Room {
  char none;
  T value;
  constexpr Room() : none() {}
  constexpr ~Room() {}
};
template <class T>
inline constexpr Room<T> kRoom{};

/// Returns the name of the member that `Address` points to.
template <auto Address>
consteval std::string_view name_of_field() {
  // "... [with auto Address = (& kRoom<Batch>.Room<Batch>::value.Batch::mask); ..."
  std::string_view text = __PRETTY_FUNCTION__;
  text = text.substr(0, text.find(");"));
  std::size_t begin = text.size();
  const auto is_of_name = [](char c) {
    return c == '_' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  };
  while (begin > 0 && is_of_name(text[begin - 1])) --begin;
  return text.substr(begin);
}

template <class T>
consteval auto field_names() {
  return []<std::size_t... I>(std::index_sequence<I...>) {
    return std::array<std::string_view, sizeof...(I)>{
        name_of_field<&std::get<I>(fields_of(kRoom<T>.value))>()...};
  }
  (std::make_index_sequence<count_fields<T>()>());
}

#else

template <class T>
consteval auto field_names() {
  return std::array<std::string_view, count_fields<T>()>{};
}

#endif

/// The names of the members of T, in order; empty where the compiler does not tell them.
template <class T>
requires PlainStruct<T>
inline constexpr auto kFieldNames = field_names<T>();

}  // namespace smp::detail
