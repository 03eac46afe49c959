// server/protocol/exception_text.h: what an exception says, whatever its type.
#pragma once

#include <exception>
#include <string>

#include "server/protocol/message.h"

namespace smp::server {

/// The text of `error`, without LibTorch's C++ backtrace; also of exceptions that are no
/// std::exception.
std::string text_of(const std::exception_ptr& error);
std::string text_of(const std::exception& error);

/// True if `error` is a PeerLostError.
bool is_of_lost_peer(const std::exception_ptr& error);

/// Returns `error` in the form in which it goes to another rank, with the type by which it will be
/// caught there. An error that came from another rank keeps its origin; any other gets `where`
/// ("rank 2, module encoder.block.3, microbatch 1") in front.
Failure failure_of(const std::exception_ptr& error, PpRank rank, const std::string& where);

}  // namespace smp::server
