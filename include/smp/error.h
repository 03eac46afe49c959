// smp/error.h: what this library throws, sorted by what the reader can do about it.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

#include "smp/detail/export.h"

namespace smp {

/// Base of every error of this library. The text says who (rank, module path, microbatch), doing
/// what, what went wrong with its values, and what to do.
class SMP_API Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
  ~Error() override;
};

/// The call or the configuration is wrong: change it.
class SMP_API UsageError : public Error {
 public:
  using Error::Error;
  ~UsageError() override;
};

/// The request is not possible with this module, type or build: take another way.
class SMP_API UnsupportedError : public Error {
 public:
  using Error::Error;
  ~UnsupportedError() override;
};

/// Memory, buffers, disk or stages ran out: make room.
class SMP_API ResourceError : public Error {
 public:
  using Error::Error;
  ~ResourceError() override;
};

/// Another rank is gone or does not answer: see its log, restart from a checkpoint.
class SMP_API PeerLostError : public Error {
 public:
  using Error::Error;
  ~PeerLostError() override;
};

/// An exception that was thrown on another rank. The exception thrown here is of two types. One is
/// this class; the other is the type of the original if that is one of the standard library (`catch
/// (const std::out_of_range&)` works as in one process), of LibTorch (c10::Error and those derived
/// from it) or of this library, else its nearest base among these, or smp::Error if there is none.
/// So it always is a std::exception by that other type. This class itself is none, or `catch (const
/// std::exception&)` would find two.
class SMP_API RemoteError {
 public:
  RemoteError(std::string text, int rank) : text_(std::move(text)), rank_(rank) {}
  virtual ~RemoteError();
  /// Returns rank, module path and microbatch of the original, and its text.
  virtual const char* what() const noexcept;
  /// The pp_rank on which the original was thrown.
  int rank() const noexcept { return rank_; }

 private:
  std::string text_;
  int rank_;
};

/// A broken invariant inside this library: report it to us.
class SMP_API InternalError : public Error {
 public:
  using Error::Error;
  ~InternalError() override;
};

/// Unwinds the parked fibers of a step that failed elsewhere. Deliberately not a std::exception,
/// so that `catch (const std::exception&)` in user code lets it pass.
struct SMP_API StepAborted {
  int rank = -1;
};

}  // namespace smp
