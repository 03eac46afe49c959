// server/protocol/remote_exception.h: exceptions of other ranks, thrown here by types that their
// catchers know (include/smp/error.h, RemoteError).
#pragma once

#include <cstdint>
#include <exception>

#include "server/protocol/message.h"

namespace smp::server {

/// Returns the number of the type by which `error` is caught on another rank: its own type, or its
/// nearest base, among those that every rank knows; 0 if it is none of them. The same number means
/// the same type on every rank.
std::uint8_t known_type_of(const std::exception& error) noexcept;

/// Returns a RemoteError that is of the type `failure.type` as well.
std::exception_ptr remote_exception(const Failure& failure);
/// Throws remote_exception(failure).
[[noreturn]] void throw_remote(const Failure& failure);

}  // namespace smp::server
