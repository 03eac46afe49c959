// server/protocol/exception_text.cpp: sorted by the types that occur.
#include "server/protocol/exception_text.h"

#include <c10/util/Exception.h>

#include "base/check.h"
#include "server/protocol/remote_exception.h"
#include "smp/error.h"

namespace smp::server {

namespace {

/// Cuts `text` where LibTorch's what() begins to list stack frames; also in a text that a user made
/// of it.
std::string without_backtrace(std::string text) {
  const auto start = text.find("\nException raised from ");
  if (start != std::string::npos && text.find("frame #", start) != std::string::npos) {
    text.resize(start);
  }
  return text;
}

}  // namespace

std::string text_of(const std::exception& error) {
  const auto* torch = dynamic_cast<const c10::Error*>(&error);
  return without_backtrace(torch == nullptr ? error.what() : torch->what_without_backtrace());
}

std::string text_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    return text_of(e);
  } catch (const StepAborted& e) {
    return base::concat("smp::StepAborted: the step failed on rank ", e.rank);
  } catch (...) {
    return "an exception that is not a std::exception";
  }
}

bool is_of_lost_peer(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const PeerLostError&) {
    return true;
  } catch (...) {
    return false;
  }
}

namespace {

std::uint8_t known_type_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    return server::known_type_of(e);
  } catch (...) {
    return 0;
  }
}

}  // namespace

Failure failure_of(const std::exception_ptr& error, PpRank rank, const std::string& where) {
  try {
    std::rethrow_exception(error);
  } catch (const RemoteError& e) {
    return {PpRank(e.rank()), e.what(), known_type_of(error)};
  } catch (...) {
    return {rank, where + ": " + text_of(error), known_type_of(error)};
  }
}

}  // namespace smp::server
