// server/exception_text.cpp: sorted by the types that occur.
#include "server/exception_text.h"

#include <c10/util/Exception.h>

#include "smp/error.h"

namespace smp::server {

std::string text_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const c10::Error& e) {
    return e.what_without_backtrace();
  } catch (const std::exception& e) {
    return e.what();
  } catch (...) {
    return "an exception that is not a std::exception";
  }
}

Failure failure_of(const std::exception_ptr& error, PpRank rank, const std::string& where) {
  try {
    std::rethrow_exception(error);
  } catch (const RemoteError& e) {
    return {PpRank(e.rank()), e.what()};
  } catch (...) {
    return {rank, where + ": " + text_of(error)};
  }
}

}  // namespace smp::server
