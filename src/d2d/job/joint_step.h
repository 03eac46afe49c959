// d2d/job/joint_step.h: steps of a job's start that all ranks take, or none. Threads: the one that
// made the MpiSession.
#pragma once

#include <exception>
#include <functional>
#include <string>

#include "d2d/job/mpi_session.h"

namespace smp::d2d {

/// A step that every rank takes, each with the others. What goes wrong on one of them all hear of,
/// so that nobody waits for that rank.
class JointStep {
 public:
  /// All ranks call it. @throws nothing that `step` throws
  JointStep(const MpiSession& job, const std::function<void()>& step);

  /// The first rank's for which it went wrong, or nothing.
  std::string problem() const;
  /// @throws  this rank's own exception; or PeerLostError, with that of another
  void require(const std::string& what, const std::string& remedy) const;

 private:
  std::exception_ptr own_;
  int rank_ = -1;
  std::string text_;
};

}  // namespace smp::d2d
