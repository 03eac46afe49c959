// d2d/wires/mpi/mpi_segments.h: the files in /dev/shm through which MPI's ranks of one machine
// talk. Threads: the thread that started MPI.
#pragma once

#include <string>
#include <vector>

#include "d2d/wires/mpi/mpi_communicator.h"

namespace smp::d2d {

/// Hides the files of Open MPI, which it or its launcher removes in the end; nobody does if both
/// are killed. So they lose their names as soon as all ranks have opened them. Open MPI wants to
/// remove them itself in the end, and gets empty ones for that.
class MpiSegments {
 public:
  /// Removes the names. All ranks of one machine call it; they talk to each other, so that all is
  /// opened.
  void hide(const MpiCommunicator& host);
  /// Makes empty files for Open MPI to remove. Called before MPI ends, and before any rank of the
  /// machine may be through with that.
  void give_back() const noexcept;

  /// Returns the files among the memory maps of a process (the text of /proc/self/maps) that are
  /// such segments.
  static std::vector<std::string> find(const std::string& maps);

 private:
  std::vector<std::string> hidden_;  // by this rank, the first of its machine
};

}  // namespace smp::d2d
