// d2d/lend/frame_loans.h: what one frame lends, until its receiver is told. Threads: as Loans.
#pragma once

#include <optional>
#include <vector>

#include "d2d/lend/loans.h"

namespace smp::d2d {

/// The loans of one frame, which are withdrawn at the end of this unless the frame was sent.
class FrameLoans {
 public:
  /// @param loans  nullptr: nothing is lent
  explicit FrameLoans(Loans* loans) : loans_(loans) {}
  ~FrameLoans() {
    for (const LoanId id : lent_) loans_->withdraw(id);
  }
  FrameLoans(const FrameLoans&) = delete;
  FrameLoans& operator=(const FrameLoans&) = delete;

  /// Lends a tensor; see Loans::lend().
  std::optional<LoanId> lend(const at::Tensor& elements) {
    auto id = loans_ == nullptr ? std::nullopt : loans_->lend(elements);
    if (id) lent_.push_back(*id);
    return id;
  }
  /// Keeps the loans, since the frame is on its way.
  void keep() noexcept { lent_.clear(); }

 private:
  Loans* loans_;
  std::vector<LoanId> lent_;
};

}  // namespace smp::d2d
