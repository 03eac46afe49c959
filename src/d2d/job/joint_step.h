// d2d/job/joint_step.h: steps of a job's start that all ranks take, or none. Threads: the one that
// made the MpiSession.
#pragma once

#include <exception>
#include <functional>
#include <string>

#include "d2d/job/mpi_session.h"

namespace smp::d2d {

/// A step that all ranks take together. All hear of a failure on one of them, so that nobody waits
/// for that rank.
class JointStep {
 public:
  /// Takes the step. All ranks call it. Exceptions of `step` are kept, not thrown.
  JointStep(const MpiSession& job, const std::function<void()>& step);

  /// Returns the problem of the first rank for which the step failed, or nothing.
  std::string problem() const;
  /// Throws if the step failed on some rank.
  /// @throws  this rank's own exception; or PeerLostError, with that of another
  void require(const std::string& what, const std::string& remedy) const;

 private:
  std::exception_ptr own_;
  int rank_ = -1;
  std::string text_;
};

}  // namespace smp::d2d
