// Exceptions of other ranks are caught by their own types.
#include "server/protocol/remote_exception.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>

#include <functional>
#include <memory>
#include <new>
#include <stdexcept>
#include <system_error>

#include "server/protocol/exception_text.h"
#include "smp/error.h"

namespace smp::server {
namespace remote_exception_test {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

/// `error` on another rank, and again on a third.
std::exception_ptr far_away(const std::exception_ptr& error) {
  const auto once = remote_exception(failure_of(error, PpRank(2), "rank 2, module a"));
  return remote_exception(failure_of(once, PpRank(1), "rank 1, module b"));
}

template <class Caught, class Thrown>
void expect_caught(const Thrown& thrown, const char* text) {
  const auto error = far_away(std::make_exception_ptr(thrown));
  EXPECT_THROW(std::rethrow_exception(error), Caught) << text;
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& caught) {
    EXPECT_THAT(caught.what(),
                AllOf(HasSubstr("rank 2, module a"), HasSubstr(text), Not(HasSubstr("rank 1"))));
  }
  try {
    std::rethrow_exception(error);
  } catch (const RemoteError& caught) {
    EXPECT_EQ(caught.rank(), 2);
    EXPECT_THAT(caught.what(), HasSubstr(text));
  }
}

TEST(RemoteExceptionTest, IsOfTheStandardTypeThatWasThrown) {
  expect_caught<std::out_of_range>(std::out_of_range("far"), "far");
  expect_caught<std::logic_error>(std::out_of_range("far"), "far");
  expect_caught<std::invalid_argument>(std::invalid_argument("bad"), "bad");
  expect_caught<std::domain_error>(std::domain_error("bad"), "bad");
  expect_caught<std::length_error>(std::length_error("long"), "long");
  expect_caught<std::logic_error>(std::logic_error("odd"), "odd");
  expect_caught<std::range_error>(std::range_error("r"), "r");
  expect_caught<std::overflow_error>(std::overflow_error("o"), "o");
  expect_caught<std::underflow_error>(std::underflow_error("u"), "u");
  expect_caught<std::runtime_error>(std::overflow_error("o"), "o");
  expect_caught<std::runtime_error>(std::runtime_error("r"), "r");
  expect_caught<std::bad_alloc>(std::bad_alloc(), "bad_alloc");
  expect_caught<std::bad_alloc>(std::bad_array_new_length(), "bad_array_new_length");
  expect_caught<std::bad_cast>(std::bad_cast(), "bad_cast");
  expect_caught<std::bad_function_call>(std::bad_function_call(), "bad_function_call");
  expect_caught<std::bad_weak_ptr>(std::bad_weak_ptr(), "bad_weak_ptr");
}

TEST(RemoteExceptionTest, IsOfNoTypeThatWasNotThrown) {
  const auto error = far_away(std::make_exception_ptr(std::out_of_range("far")));
  const auto caught_by = [&]() -> std::string {
    try {
      std::rethrow_exception(error);
    } catch (const std::runtime_error&) {
      return "std::runtime_error";
    } catch (const std::invalid_argument&) {
      return "std::invalid_argument";
    } catch (const std::out_of_range&) {
      return "std::out_of_range";
    }
  };
  EXPECT_EQ(caught_by(), "std::out_of_range");
}

template <class Kind>
Kind torch_error(const char* text) {
  return Kind({"function", "file.cpp", 7}, text);
}

TEST(RemoteExceptionTest, IsOfLibTorchsTypeThatWasThrownWithoutBacktrace) {
  expect_caught<c10::Error>(torch_error<c10::Error>("shapes"), "shapes");
  expect_caught<c10::IndexError>(torch_error<c10::IndexError>("index"), "index");
  expect_caught<c10::Error>(torch_error<c10::IndexError>("index"), "index");
  expect_caught<c10::ValueError>(torch_error<c10::ValueError>("value"), "value");
  expect_caught<c10::TypeError>(torch_error<c10::TypeError>("type"), "type");
  expect_caught<c10::NotImplementedError>(torch_error<c10::NotImplementedError>("not"), "not");
  expect_caught<c10::OutOfMemoryError>(torch_error<c10::OutOfMemoryError>("memory"), "memory");
  expect_caught<c10::LinAlgError>(torch_error<c10::LinAlgError>("singular"), "singular");
  try {
    std::rethrow_exception(far_away(std::make_exception_ptr(torch_error<c10::Error>("shapes"))));
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what(), Not(HasSubstr("frame #")));
    EXPECT_STREQ(error.what(), error.what_without_backtrace());
  }
}

TEST(RemoteExceptionTest, IsOfOurTypeThatWasThrown) {
  expect_caught<UsageError>(UsageError("use"), "use");
  expect_caught<UnsupportedError>(UnsupportedError("not"), "not");
  expect_caught<PeerLostError>(PeerLostError("gone"), "gone");
  expect_caught<Error>(InternalError("bug"), "bug");
}

struct OwnError : std::out_of_range {
  using std::out_of_range::out_of_range;
};
struct OwnException : std::exception {
  const char* what() const noexcept override { return "own"; }
};

TEST(RemoteExceptionTest, OfAUsersTypeIsOfItsNearestKnownBase) {
  expect_caught<std::out_of_range>(OwnError("mine"), "mine");
  expect_caught<std::system_error>(std::system_error(std::make_error_code(std::errc::io_error)),
                                   "Input/output");
  expect_caught<std::ios_base::failure>(std::ios_base::failure("no file"), "no file");
  expect_caught<Error>(OwnException(), "own");
  expect_caught<Error>(42, "not a std::exception");
}

TEST(RemoteExceptionTest, OfANumberNobodyKnowsIsAnError) {
  EXPECT_THROW(throw_remote({PpRank(0), "text", 255}), Error);
}

TEST(ExceptionTextTest, LeavesOutFramesThatAUserCopied) {
  const std::string copied =
      "wrong\nException raised from forward at a.cpp:7 (most recent call first):\nframe #0: ...\n";
  EXPECT_EQ(text_of(std::make_exception_ptr(std::runtime_error(copied))), "wrong");
}

}  // namespace remote_exception_test
}  // namespace smp::server
