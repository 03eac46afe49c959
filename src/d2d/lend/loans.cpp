// d2d/lend/loans.cpp: see the header.
#include "d2d/lend/loans.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/InferenceMode.h>

#include <array>
#include <atomic>
#include <mutex>
#include <span>
#include <utility>

#include "base/check.h"
#include "base/keep_until_exit.h"
#include "base/torch_features.h"
#include "d2d/lend/heap_allocator.h"
#include "d2d/tensors/copy_on_write.h"

namespace smp::d2d {
namespace {

constexpr std::uint32_t kSlots = 8192;
/// The bits of a slot in an id, which is a slot and the offset of the tensor in the lender's heap.
constexpr unsigned kSlotBits = 16;
static_assert(kSlots <= 1U << kSlotBits);

constexpr LoanId id_of(std::uint32_t slot, std::uint64_t offset) noexcept {
  return offset << kSlotBits | slot;
}
constexpr std::uint32_t slot_of(LoanId id) noexcept {
  return static_cast<std::uint32_t>(id & ((1U << kSlotBits) - 1));
}

}  // namespace

/// The table in memory that lender and borrowers share.
struct Loans::Table {
  std::atomic<std::uint64_t> returns;
  std::array<std::atomic<std::uint8_t>, kSlots> out;
};

/// The memory of another rank as this one maps it, as long as tensors lie there.
class Loans::Lender {
 public:
  Lender(base::SharedMemory heap, base::SharedMemory table)
      : heap_(std::move(heap)), table_(std::move(table)) {}

  std::span<const std::byte> heap() const noexcept { return heap_.bytes(); }
  void give_back(std::uint32_t slot) noexcept {
    if (HeapAllocator::in_forked_child()) return;  // the parent still has it
    auto& table = *reinterpret_cast<Table*>(table_.bytes().data());
    table.out[slot].store(0, std::memory_order_release);
    table.returns.fetch_add(1, std::memory_order_release);
  }

 private:
  base::SharedMemory heap_, table_;
};

/// Borrowed memory whose storage has got its own, because somebody writes to it. The operation that
/// writes may still read the old memory, so it stays until the borrower polls again. Threads: any.
class Loans::Left {
 public:
  void add(at::DataPtr&& memory) {
    const std::lock_guard lock(mutex_);
    if (ended_) return;
    memory_.push_back(std::move(memory));
    any_.store(true, std::memory_order_release);
  }
  void give_back(bool for_good) {
    if (!for_good && !any_.load(std::memory_order_acquire)) return;
    std::vector<at::DataPtr> memory;
    const std::lock_guard lock(mutex_);
    ended_ |= for_good;
    any_.store(false, std::memory_order_relaxed);
    memory.swap(memory_);
  }

 private:
  std::mutex mutex_;
  std::vector<at::DataPtr> memory_;
  std::atomic<bool> any_ = false;
  bool ended_ = false;  // nobody polls any more
};

/// One borrowed loan, which goes back once nobody has it any more.
class Loans::Loan {
 public:
  Loan(std::shared_ptr<Lender> lender, std::uint32_t slot) noexcept
      : lender_(std::move(lender)), slot_(slot) {}
  ~Loan() { lender_->give_back(slot_); }
  Loan(const Loan&) = delete;
  Loan& operator=(const Loan&) = delete;

 private:
  const std::shared_ptr<Lender> lender_;
  const std::uint32_t slot_;
};

/// The context of the DataPtr of a borrowed storage.
struct Loans::Borrowed {
  std::shared_ptr<const Loan> loan;
  std::shared_ptr<Left> left;

  static void end(void* borrowed) { delete static_cast<Borrowed*>(borrowed); }
  static Storage storage(void* data, std::size_t bytes, const Borrowed& borrowed) {
    c10::DataPtr memory(data, new Borrowed(borrowed), &end, c10::DeviceType::CPU);
    auto storage = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes,
                                                         std::move(memory), c10::GetCPUAllocator(),
                                                         /*resizable=*/true);
#if SMP_STORAGES_CAN_BE_WATCHED  // else nothing is ever lent
    storage->set_materializer(&copy_before_writing);
#endif
    return storage;
  }
  /// Gives `storage` memory of its own before somebody writes to it. A thread that comes second
  /// finds that done.
  static void copy_before_writing(c10::StorageImpl* storage) {
    static std::mutex one_at_a_time;
    const std::lock_guard lock(one_at_a_time);
    if (storage->data_ptr().get_deleter() != &end) return;
    auto memory = storage->allocator()->clone(storage->data_ptr().get(), storage->nbytes());
    std::swap(memory, storage->_mutable_data_ptr_no_checks());
    const auto left = static_cast<Borrowed*>(memory.get_context())->left;
    left->add(std::move(memory));
  }
};

std::unique_ptr<Loans> Loans::make(base::SharedHeap* heap) {
  if (heap == nullptr) return nullptr;
  auto table = base::SharedMemory::make(sizeof(Table));
  if (!table) return nullptr;
  return std::unique_ptr<Loans>(new Loans(*heap, std::move(*table)));
}

Loans::Loans(base::SharedHeap& heap, base::SharedMemory table)
    : heap_(heap),
      table_(std::move(table)),
      left_(std::make_shared<Left>()),
      out_(std::make_unique<std::vector<Storage>>(kSlots)) {
  for (std::uint32_t slot = kSlots; slot-- > 0;) free_slots_.push_back(slot);
}

/// Ends the loans. Memory that is still lent stays until the process ends, since borrowers may read
/// it for as long as they like.
Loans::~Loans() {
  take_back();
  left_->give_back(/*for_good=*/true);
  if (lent_ > 0) base::keep_until_exit(std::move(out_));
}

Loans::Table& Loans::table() const noexcept {
  return *reinterpret_cast<Table*>(table_.bytes().data());
}

Loans::Offer Loans::offer() const {
  return {heap_.memory().address(), table_.address(), heap_.size()};
}

bool Loans::connect(GlobalRank rank, const Members& members, const std::vector<Offer>& offers) {
  using Access = base::SharedMemory::Access;
  for (std::size_t i = 0; i < offers.size(); ++i) {
    const auto& offer = offers[i];
    if (members[static_cast<int>(i)] == rank) {
      lenders_.push_back(nullptr);
      continue;
    }
    if (offer.heap_bytes == 0) return false;
    auto heap = base::SharedMemory::open(offer.heap, offer.heap_bytes, Access::kRead);
    auto table = base::SharedMemory::open(offer.table, sizeof(Table));
    if (!heap || !table) return false;
    heap->keep_from_dumps();
    lenders_.push_back(std::make_shared<Lender>(std::move(*heap), std::move(*table)));
  }
  rank_ = rank;
  members_ = members;
  return true;
}

std::optional<LoanId> Loans::lend(const at::Tensor& tensor) {
  auto& storage = *tensor.storage().unsafeGetStorageImpl();
  const auto offset = heap_.offset(tensor.const_data_ptr());
  const bool whole =
      tensor.nbytes() >= HeapAllocator::kLeast && tensor.nbytes() >= storage.nbytes() / 2;
  if (!whole || offset >= heap_.size()) return std::nullopt;
  take_back();
  if (free_slots_.empty()) return std::nullopt;
  auto reference = shared_until_written(storage);
  if (!reference) return std::nullopt;
  const auto slot = free_slots_.back();
  free_slots_.pop_back();
  (*out_)[slot] = std::move(reference);
  ++lent_;
  table().out[slot].store(1, std::memory_order_relaxed);
  return id_of(slot, offset);
}

void Loans::withdraw(LoanId id) noexcept {
  const auto slot = slot_of(id);
  table().out[slot].store(0, std::memory_order_relaxed);
  (*out_)[slot].reset();
  free_slots_.push_back(slot);
  --lent_;
}

c10::intrusive_ptr<c10::StorageImpl> Loans::twin(const c10::StorageImpl& storage) {
  const auto& memory = storage.data_ptr();
  if (memory.get_deleter() != &Borrowed::end) return nullptr;
  return Borrowed::storage(memory.get(), storage.nbytes(),
                           *static_cast<const Borrowed*>(memory.get_context()));
}

bool Loans::is_borrowed(const at::Tensor& tensor) noexcept {
  return tensor.storage().data_ptr().get_deleter() == &Borrowed::end;
}

void Loans::take_back() {
  left_->give_back(/*for_good=*/false);
  if (lent_ == 0) return;
  const auto returns = table().returns.load(std::memory_order_acquire);
  if (returns == seen_returns_) return;
  seen_returns_ = returns;
  for (std::uint32_t slot = 0; slot < kSlots; ++slot) {
    if (!(*out_)[slot] || table().out[slot].load(std::memory_order_acquire) != 0) continue;
    (*out_)[slot].reset();
    free_slots_.push_back(slot);
    --lent_;
  }
}

at::Tensor Loans::borrow(GlobalRank lender, LoanId id, at::IntArrayRef sizes,
                         c10::ScalarType dtype) {
  SMP_REQUIRE_AS(InternalError, reaches(lender), "rank ", rank_, ": rank ", lender,
                 " lends a tensor, and its memory is not mapped here; do all ranks run the same "
                 "build?");
  auto& from = lenders_[static_cast<std::size_t>(members_.position(lender))];
  const auto slot = slot_of(id);
  const auto offset = id >> kSlotBits;
  std::uint64_t bytes = c10::elementSize(dtype);
  for (const auto size : sizes) bytes *= static_cast<std::uint64_t>(size);
  const auto heap = from->heap();
  SMP_REQUIRE_AS(InternalError,
                 slot < kSlots && offset < heap.size() && bytes <= heap.size() - offset, "rank ",
                 rank_, ": rank ", lender, " lends ", bytes, " bytes at ", offset,
                 ", outside of its memory; do all ranks run the same build?");
  auto* const data = const_cast<std::byte*>(heap.data() + offset);  // only read
  auto storage = Borrowed::storage(data, bytes, {std::make_shared<const Loan>(from, slot), left_});
  c10::InferenceMode normal(false);
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(std::move(storage)),
                                                         c10::DispatchKeySet(c10::DispatchKey::CPU),
                                                         c10::scalarTypeToTypeMeta(dtype));
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return tensor;
}

}  // namespace smp::d2d
