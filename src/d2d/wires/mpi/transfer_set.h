// d2d/wires/mpi/transfer_set.h: MPI requests in flight, each with what is to be done when it
// completes. Threads: the thread that started MPI.
#pragma once

#include <mpi.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>
#include <vector>

#include "d2d/wires/mpi/mpi_communicator.h"

namespace smp::d2d {

/// MPI requests and their payloads side by side, so that MPI can test a window of requests in one
/// call.
template <class Payload>
class TransferSet {
 public:
  bool empty() const noexcept { return requests_.empty(); }
  std::size_t size() const noexcept { return requests_.size(); }

  void add(MPI_Request request, Payload payload) {
    requests_.push_back(request);
    payloads_.push_back(std::move(payload));
  }

  /// Tests a window of requests and hands the payloads of complete ones to `done`, in the order
  /// they were added; `done` may add. Calls go round all requests. Returns true if there was one.
  template <class Done>
  bool test(Done&& done) {
    if (empty()) return false;
    const std::size_t start = next_ < size() ? next_ : 0;
    const std::size_t count = std::min(kWindow, size() - start);
    // Not where the last window ended if nothing is behind it: what `done` adds must not be all
    // that the next call tests.
    next_ = start + count < size() ? start + count : 0;
    int complete = 0;
    check_mpi(MPI_Testsome(static_cast<int>(count), requests_.data() + start, &complete,
                           indices_.data(), MPI_STATUSES_IGNORE),
              "completing a transfer");
    if (complete <= 0) return false;  // MPI_UNDEFINED is negative
    take_completed(start, static_cast<std::size_t>(complete));
    for (Payload& payload : completed_) done(std::move(payload));
    completed_.clear();
    return true;
  }

  /// Tests all requests that are there now, a window at a time. Returns true if one was complete.
  template <class Done>
  bool test_all(Done&& done) {
    bool any = false;
    std::size_t untested = size();
    for (next_ = 0; untested > 0; untested -= std::min(untested, kWindow)) any |= test(done);
    return any;
  }

 private:
  static constexpr std::size_t kWindow = 64;

  void take_completed(std::size_t start, std::size_t complete) {
    std::sort(indices_.begin(), indices_.begin() + complete);
    for (std::size_t i = 0; i < complete; ++i) {
      completed_.push_back(std::move(payloads_[start + indices_[i]]));
    }
    for (std::size_t i = complete; i-- > 0;) {
      const auto hole = static_cast<std::ptrdiff_t>(start + indices_[i]);
      requests_.erase(requests_.begin() + hole);
      payloads_.erase(payloads_.begin() + hole);
    }
    if (next_ > 0) next_ -= complete;
  }

  std::vector<MPI_Request> requests_;
  std::vector<Payload> payloads_;
  std::size_t next_ = 0;  // where the next window starts
  std::array<int, kWindow> indices_;
  std::vector<Payload> completed_;
};

}  // namespace smp::d2d
