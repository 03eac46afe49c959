// server/protocol/remote_exception.h: exceptions of other ranks, thrown here by types that their
// catchers know (include/smp/error.h, RemoteError).
#pragma once

#include <cstdint>
#include <exception>

#include "server/protocol/message.h"

namespace smp::server {

/// The type by which `error` is caught on another rank: its own, or its nearest base, of those that
/// every rank knows. 0: none of them. The same number means the same type on every rank.
std::uint8_t known_type_of(const std::exception& error) noexcept;

/// A RemoteError that is of the type `failure.type` as well.
std::exception_ptr remote_exception(const Failure& failure);
/// Throws it.
[[noreturn]] void throw_remote(const Failure& failure);

}  // namespace smp::server
