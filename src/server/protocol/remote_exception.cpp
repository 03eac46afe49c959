// server/protocol/remote_exception.cpp: the types that every rank knows.
#include "server/protocol/remote_exception.h"

#include <c10/util/Exception.h>

#include <any>
#include <array>
#include <filesystem>
#include <functional>
#include <ios>
#include <memory>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <system_error>
#include <type_traits>
#include <typeinfo>
#include <variant>

#include "smp/error.h"

namespace smp::server {
namespace {

/// The exception that is thrown: it is caught as `Known`, as any base of it, and as RemoteError.
/// `Known` has the only std::exception in it, so that no catch is ambiguous.
template <class Known>
class RemoteErrorOf final : public Known, public RemoteError {
 public:
  explicit RemoteErrorOf(const Failure& failure)
      : Known(known(failure.text)), RemoteError(failure.text, failure.rank.value()) {}
  const char* what() const noexcept override { return RemoteError::what(); }

 private:
  static Known known(const std::string& text) {
    if constexpr (std::is_base_of_v<c10::Error, Known>) {
      return Known(text, nullptr);  // no backtrace: it would be that of this rank
    } else if constexpr (std::is_constructible_v<Known, std::error_code, const std::string&>) {
      return Known(std::error_code(), text);  // codes do not travel
    } else if constexpr (std::is_constructible_v<Known, const std::string&, std::error_code>) {
      return Known(text, std::error_code());
    } else if constexpr (std::is_constructible_v<Known, const std::string&>) {
      return Known(text);
    } else {
      return Known();
    }
  }
};

/// One type that every rank knows: how to recognise it, and how to make an exception of it.
struct KnownType {
  bool (*matches)(const std::exception& error) noexcept;
  std::exception_ptr (*make)(const Failure& failure);
};

template <class Known>
constexpr KnownType known() {
  return {[](const std::exception& error) noexcept {
            return dynamic_cast<const Known*>(&error) != nullptr;
          },
          [](const Failure& failure) {
            return std::make_exception_ptr(RemoteErrorOf<Known>(failure));
          }};
}

/// The known types, derived ones before their bases; positions are numbers on the wire. A plain
/// std::runtime_error becomes an Error, which is one.
constexpr std::array kKnownTypes{
    known<UsageError>(),
    known<UnsupportedError>(),
    known<ResourceError>(),
    known<PeerLostError>(),
    known<InternalError>(),
    known<c10::IndexError>(),
    known<c10::ValueError>(),
    known<c10::TypeError>(),
    known<c10::NotImplementedError>(),
    known<c10::BufferError>(),
    known<c10::EnforceFiniteError>(),
    known<c10::LinAlgError>(),
    known<c10::OutOfMemoryError>(),
    known<c10::Error>(),
    known<std::invalid_argument>(),
    known<std::domain_error>(),
    known<std::length_error>(),
    known<std::out_of_range>(),
    known<std::logic_error>(),
    known<std::range_error>(),
    known<std::overflow_error>(),
    known<std::underflow_error>(),
    known<std::ios_base::failure>(),
    known<std::filesystem::filesystem_error>(),
    known<std::system_error>(),
    known<Error>(),
    known<std::bad_array_new_length>(),
    known<std::bad_alloc>(),
    known<std::bad_any_cast>(),
    known<std::bad_cast>(),
    known<std::bad_typeid>(),
    known<std::bad_optional_access>(),
    known<std::bad_variant_access>(),
    known<std::bad_function_call>(),
    known<std::bad_weak_ptr>(),
    known<std::bad_exception>(),
};

}  // namespace

std::uint8_t known_type_of(const std::exception& error) noexcept {
  for (std::size_t i = 0; i < kKnownTypes.size(); ++i) {
    if (kKnownTypes[i].matches(error)) return static_cast<std::uint8_t>(i + 1);
  }
  return 0;
}

std::exception_ptr remote_exception(const Failure& failure) {
  constexpr auto kNone = known<Error>();
  const std::size_t type = failure.type;
  return (type == 0 || type > kKnownTypes.size() ? kNone : kKnownTypes[type - 1]).make(failure);
}

void throw_remote(const Failure& failure) { std::rethrow_exception(remote_exception(failure)); }

}  // namespace smp::server
