// smp/detail/signature.h: taking the type of a method apart.
#pragma once

#include <cstddef>
#include <type_traits>
#include <utility>

namespace smp::detail {

template <class... T>
struct TypeList {};

/// The type of a method `R method(A...) [const] [noexcept]`.
template <bool Const, bool Noexcept, class R, class... A>
struct Signature {};

template <class Pointer>
struct SignatureOf;
#define SMP_SIGNATURE(QUALIFIERS, CONST, NOEXCEPT)    \
  template <class Class, class R, class... A>         \
  struct SignatureOf<R (Class::*)(A...) QUALIFIERS> { \
    using type = Signature<CONST, NOEXCEPT, R, A...>; \
  };
SMP_SIGNATURE(, false, false)
SMP_SIGNATURE(&, false, false)
SMP_SIGNATURE(noexcept, false, true)
SMP_SIGNATURE(const, true, false)
SMP_SIGNATURE(const&, true, false)
SMP_SIGNATURE(const noexcept, true, true)
#undef SMP_SIGNATURE

/// The signature without its last parameter.
template <class S, class Kept = TypeList<>>
struct DropLast;
template <bool C, bool N, class R, class Last, class... Kept>
struct DropLast<Signature<C, N, R, Last>, TypeList<Kept...>> {
  using type = Signature<C, N, R, Kept...>;
};
template <bool C, bool N, class R, class First, class Second, class... Rest, class... Kept>
struct DropLast<Signature<C, N, R, First, Second, Rest...>, TypeList<Kept...>>
    : DropLast<Signature<C, N, R, Second, Rest...>, TypeList<Kept..., First>> {};

/// True if `Method` of a `Self` can be called with A...
template <class Method, class Self, class... A>
concept CallableWith = requires {
  typename Method::template Result<Self&, A...>;
};

template <class Method, class Impl, class S>
inline constexpr bool callable_as_v = false;
template <class Method, class Impl, bool C, bool N, class R, class... A>
inline constexpr bool callable_as_v<Method, Impl, Signature<C, N, R, A...>> =
    CallableWith<Method, std::conditional_t<C, const Impl, Impl>, A...>;

/// True if the last parameter has a default argument.
template <class Method, class Impl, class S>
concept HasDefault = callable_as_v<Method, Impl, typename DropLast<S>::type>;

/// Maps the type of an argument, deduced at a call, to the type with which the same call takes it
/// on another rank.
template <class A>
struct SentAs {
  using type = A;
};
template <class A>
struct SentAs<A&> {
  using type = const A&;
};
template <std::size_t N>
struct SentAs<const char (&)[N]> {
  using type = const char*;
};
template <class A>
using SentAsT = typename SentAs<A>::type;

}  // namespace smp::detail
