// smp/detail/argument.h: how a parameter of a method travels: views are sent as what they look at.
#pragma once

#include <c10/util/ArrayRef.h>

#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "smp/codec.h"

namespace smp::detail {

/// Says how an argument of type T travels: `Stored` owns what is sent, store() makes it, and pass()
/// gives it to the method.
template <class T>
struct Travel {
  using Stored = T;
  static const T& store(const T& value) { return value; }
  static T&& pass(T& stored) { return std::move(stored); }
};

template <class T>
requires(!std::is_same_v<T, bool>) struct Travel<c10::ArrayRef<T>> {
  using Stored = std::vector<T>;
  static Stored store(c10::ArrayRef<T> view) { return view.vec(); }
  static c10::ArrayRef<T> pass(Stored& stored) { return stored; }
};

template <class View>
struct TravelOptional {
  using Stored = std::optional<typename Travel<View>::Stored>;
  template <class Optional>
  static Stored store(const Optional& view) {
    return view.has_value() ? Stored(Travel<View>::store(*view)) : Stored();
  }
};
template <class T>
struct Travel<std::optional<c10::ArrayRef<T>>> : TravelOptional<c10::ArrayRef<T>> {
  static std::optional<c10::ArrayRef<T>> pass(std::optional<std::vector<T>>& stored) {
    if (!stored) return std::nullopt;
    return c10::ArrayRef<T>(*stored);
  }
};
template <class T>
struct Travel<c10::OptionalArrayRef<T>> : TravelOptional<c10::ArrayRef<T>> {
  static c10::OptionalArrayRef<T> pass(std::optional<std::vector<T>>& stored) {
    if (!stored) return std::nullopt;
    return c10::OptionalArrayRef<T>(c10::ArrayRef<T>(*stored));
  }
};

template <>
struct Travel<std::string_view> {
  using Stored = std::string;
  static Stored store(std::string_view view) { return std::string(view); }
  static std::string_view pass(Stored& stored) { return stored; }
};
template <>
struct Travel<const char*> {
  using Stored = std::string;
  static Stored store(const char* text) { return text; }
  static const char* pass(Stored& stored) { return stored.c_str(); }
};

/// A parameter's type without reference and const.
template <class A>
using Value = std::decay_t<A>;
template <class A>
using TravelOf = Travel<Value<A>>;
template <class A>
using StoredOf = typename TravelOf<A>::Stored;

/// True if a parameter of type A can cross ranks. A non-const `T&` cannot, because what the method
/// writes into it would stay on the owner.
template <class A>
inline constexpr bool crosses_as_argument_v =
    !(std::is_lvalue_reference_v<A> &&
      !std::is_const_v<std::remove_reference_t<A>>)&&is_crossable_v<StoredOf<A>>;

template <class R>
inline constexpr bool crosses_as_result_v = std::is_void_v<R> ||
                                            (!std::is_reference_v<R> &&
                                             is_crossable_v<std::remove_cv_t<R>>);

/// One received argument.
template <class A>
struct Received {
  StoredOf<A> stored;
  explicit Received(Reader& in) : stored(in.get<StoredOf<A>>()) {}
  decltype(auto) pass() { return TravelOf<A>::pass(stored); }
};

template <class A>
void put_argument(Writer& out, const std::remove_reference_t<A>& value) {
  out.put<StoredOf<A>>(TravelOf<A>::store(value));
}

}  // namespace smp::detail
