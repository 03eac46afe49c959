// d2d/lend/loans.h: tensors that ranks of one machine lend each other instead of copying them.
// Paper: §6, App. G.2 (which copies into shared memory). Threads: one at a time, but borrowed
// tensors may end on any.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/memory/shared_heap.h"
#include "base/memory/shared_memory.h"
#include "d2d/wire/members.h"
#include "smp/rank.h"

namespace smp::d2d {

/// The lender's name for a loan.
using LoanId = std::uint64_t;

/// Lends tensors between the ranks of one machine. Both sides go on with the same memory, which
/// nobody writes to: the lender's storage becomes copy-on-write (c10/core/impl/COW.h), and so is
/// the borrower's, which cannot be written to at all. So whoever writes to a tensor gets memory of
/// its own first. The lender keeps the memory until the borrower's storages have ended, or been
/// written to and polled since. Pointers to elements that were taken before a tensor was lent must
/// not be written through after.
class Loans {
 public:
  /// The memory of a rank, as its process tells others where it is.
  struct Offer {
    base::SharedMemory::Address heap, table;
    std::uint64_t heap_bytes = 0;  ///< 0: it lends nothing
  };

  /// Makes the table of this process; `heap` outlives it. nullptr if the machine refuses memory.
  static std::unique_ptr<Loans> make(base::SharedHeap* heap);
  ~Loans();
  Loans(const Loans&) = delete;
  Loans& operator=(const Loans&) = delete;

  Offer offer() const;
  /// Maps the memory that the others offer, by position among `members`, which this rank is one of.
  /// Returns false if the machine refuses; then nobody may lend.
  bool connect(GlobalRank rank, const Members& members, const std::vector<Offer>& offers);
  /// Ends the offer once all have connected.
  void stop_offering() noexcept { table_.stop_offering(); }

  /// True if `peer` is one of the connected ranks.
  bool reaches(GlobalRank peer) const { return peer != rank_ && members_.contain(peer); }
  /// Lends `tensor`, which is contiguous, until one borrower has given it back. Returns nothing if
  /// it is small, not in the heap, a small part of something large, or too much is lent already:
  /// send it.
  std::optional<LoanId> lend(const at::Tensor& tensor);
  /// Takes back a loan that nobody was told of: the tensor can be lent anew.
  void withdraw(LoanId id) noexcept;
  /// Borrows the tensor that `lender` lent as `id`; each loan is borrowed once. The result is
  /// contiguous, without history.
  /// @throws InternalError  the lender cannot have lent that.
  at::Tensor borrow(GlobalRank lender, LoanId id, at::IntArrayRef sizes, c10::ScalarType dtype);
  /// Returns another storage of the memory that `storage` has borrowed, which the lender keeps
  /// until all of them have ended; nullptr: `storage` is not borrowed.
  static c10::intrusive_ptr<c10::StorageImpl> twin(const c10::StorageImpl& storage);
  /// True if the elements lie in memory of another rank, which may only be read.
  static bool is_borrowed(const at::Tensor& tensor) noexcept;
  /// Frees loans that came back, and gives back those of this rank that were written to since the
  /// last call. Quick if there is nothing to do.
  void take_back();
  /// The number of loans that are not back yet.
  std::size_t lent() const noexcept { return lent_; }

 private:
  struct Table;
  class Lender;
  class Left;
  class Loan;
  struct Borrowed;
  using Storage = c10::intrusive_ptr<c10::StorageImpl>;

  Loans(base::SharedHeap& heap, base::SharedMemory table);
  Table& table() const noexcept;

  base::SharedHeap& heap_;
  base::SharedMemory table_;
  GlobalRank rank_;
  Members members_;
  std::vector<std::shared_ptr<Lender>> lenders_;  // by position
  std::shared_ptr<Left> left_;
  std::unique_ptr<std::vector<Storage>> out_;  // by slot
  std::vector<std::uint32_t> free_slots_;
  std::uint64_t seen_returns_ = 0;
  std::size_t lent_ = 0;
};

}  // namespace smp::d2d
