// d2d/wires/mpi/mpi_segments.cpp: see the header.
#include "d2d/wires/mpi/mpi_segments.h"

#include <fcntl.h>
#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <iterator>
#include <sstream>

namespace smp::d2d {
namespace {

/// The names of the files of Open MPI 4 and 5.
constexpr std::array kNames{"/dev/shm/vader_segment.", "/dev/shm/sm_segment."};

std::string read_maps() {
  std::ifstream maps("/proc/self/maps");
  return {std::istreambuf_iterator<char>(maps), {}};
}

}  // namespace

std::vector<std::string> MpiSegments::find(const std::string& maps) {
  std::vector<std::string> found;
  std::istringstream lines(maps);
  for (std::string line; std::getline(lines, line);) {
    for (const char* const name : kNames) {
      const auto start = line.find(name);
      if (start == std::string::npos || line.ends_with(" (deleted)")) continue;
      const auto path = line.substr(start);
      if (std::find(found.begin(), found.end(), path) == found.end()) found.push_back(path);
    }
  }
  return found;
}

void MpiSegments::hide(const MpiCommunicator& host) {
  const int ranks = host.size();
  for (int shift = 1; shift < ranks; ++shift) {  // each with each: a collective may take detours
    const int sent = shift;
    int received = 0;
    check_mpi(
        MPI_Sendrecv(&sent, 1, MPI_INT, (host.rank() + shift) % ranks, shift, &received, 1, MPI_INT,
                     (host.rank() + ranks - shift) % ranks, shift, host.get(), MPI_STATUS_IGNORE),
        "meeting the ranks of this machine");
  }
  check_mpi(MPI_Barrier(host.get()), "meeting the ranks of this machine");
  if (host.rank() != 0) return;
  for (const auto& path : find(read_maps())) {
    if (::unlink(path.c_str()) == 0) hidden_.push_back(path);
  }
}

void MpiSegments::give_back() const noexcept {
  for (const auto& path : hidden_) {
    const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (file >= 0) ::close(file);
  }
}

}  // namespace smp::d2d
