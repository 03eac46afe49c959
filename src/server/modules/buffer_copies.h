// server/modules/buffer_copies.h: small buffers that several ranks hold (docs/design.md, Buffers):
// what a rank reads must be what their owner has. Threads: the rank's.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/modules/foreign_parameters.h"
#include "server/values/guarded_tensor.h"
#include "smp/rank.h"

namespace smp::server {

/// The copies of one rank and the originals that it owns, numbered alike on every rank.
///
/// A copy notices its first use in a step. After a step every rank reports what it used and what
/// changed; the first stage compares (judge()), and tells the others what changed. A copy that was
/// used and differs is an error, and so is one that a step changed like its original: one process
/// would change it twice. One that nobody used becomes a foreign tensor, which names itself when it
/// is used later. So a buffer that its own module changes may stay copied as long as no other rank
/// looks at it.
class BufferCopies {
 public:
  BufferCopies(GlobalRank rank, ForeignParameters& foreign) : rank_(rank), foreign_(foreign) {}

  /// Adds a buffer that rank `owner` owns. Every rank adds the same buffers in the same order.
  /// @param here    whether this rank keeps it, as its owner or as a copy; else it is foreign
  /// @param weight  it lies in the memory of a parameter, which optimizers write
  void add(const std::string& path, const at::Tensor& tensor, GlobalRank owner, bool here,
           bool weight = false);

  /// Runs `give_values`, which gives buffers the values that another pipeline has: copies count as
  /// neither used nor changed by that.
  void give(c10::function_ref<void()> give_values);
  /// Begins a step: from now on only one rank may write to a buffer. Runs LibTorch code; reads the
  /// buffers that are here, some µs each.
  void begin_step();
  /// Returns, as bytes, which copies this rank used and which of its own buffers it changed since
  /// the last report; empty if none. Costs as much.
  [[nodiscard]] std::string report();
  /// Notes that the running statistics of the step were committed after report(), so the next
  /// report tells of them.
  void note_commit() noexcept;
  /// Returns true if `report` holds something that rank `from` had not reported before, and
  /// remembers it.
  bool is_news(GlobalRank from, std::string_view report);
  /// Notes what rank `from` has reported. First stage only.
  void note(GlobalRank from, std::string_view report);
  /// Compares what all ranks have reported, and returns, as bytes for follow() on every rank, the
  /// buffers that have changed since the last judge(). First stage only. @throws UsageError  a rank
  /// used a copy that differs from what its owner has.
  [[nodiscard]] std::string judge();
  /// Applies what judge() returned: unused copies that differ become foreign tensors.
  void follow(std::string_view changes);
  /// Forgets the reports of the step because it failed, so other ranks may not have received them.
  void drop() noexcept;

  std::size_t size() const noexcept { return entries_.size(); }

 private:
  /// The guard of one copy: notes its first use, and makes it an ordinary tensor then.
  class Guard final : public TensorGuard {
   public:
    explicit Guard(at::Tensor plain) : plain_(std::move(plain)) {}
    void before_use(const at::Tensor& tensor, const std::string&, bool) override {
      used_ = true;
      unguard(tensor, plain_);
    }
    bool used() const noexcept { return used_; }
    const at::Tensor& plain() const noexcept { return plain_; }
    void forget_use() noexcept { used_ = false; }

   private:
    at::Tensor plain_;  // the same memory
    bool used_ = false;
  };
  /// A buffer as it is at one time. Fused steps of optimizers and what is written through data()
  /// leave the version as it was.
  struct Look {
    std::uint32_t version = 0;
    const void* memory = nullptr;
    std::uint64_t values = 0;  // their hash; 0: they are not read
    friend bool operator==(const Look&, const Look&) = default;
  };
  struct Entry {
    std::string path;
    GlobalRank owner;
    at::Tensor tensor;                     // undefined: not held here, or its model is gone
    c10::intrusive_ptr<Guard> guard = {};  // of a copy
    bool read = false;                     // its values tell of changes, not its version alone
    Look last = {};                        // when it was last looked at
    Look at_begin = {};                    // of the step
    bool changed = false;                  // since the model was placed
    std::uint64_t hash = 0;                // of the values then; 0: not known yet
    std::uint64_t first = 0;               // of those of the beginning; 0: not known
    bool committed = false;                // at the end of the last step
    bool told = false;                     // an original: no copy can be right any more
    bool reported = false;                 // an original: in the running step
    bool unheard = false;                  // it was, and that step failed
  };
  /// The kinds of report entries: the owner changed the buffer between steps, or in the step; a
  /// copy was used, or was changed, in the step.
  enum class Event : std::uint32_t { kChanged, kChangedInStep, kCopyUsed, kCopyChanged };
  /// One entry of a report, about one buffer.
  struct Line {
    std::uint32_t number;
    Event event;
    std::uint64_t hash;
    std::uint64_t first;  // of a copy: its values of the beginning
    friend bool operator==(const Line&, const Line&) = default;
  };
  struct Use {
    GlobalRank rank;
    Line line;
  };
  static Look look_at(const Entry& entry);
  static bool has_changed(Entry& entry);
  static std::uint64_t hash_now(Entry& entry);
  void watch(Entry& entry) const;
  bool is_gone(Entry& entry) const;
  static std::vector<Line> lines_of(std::string_view report);

  GlobalRank rank_;
  ForeignParameters& foreign_;
  std::vector<Entry> entries_;
  std::vector<Use> noted_;  // first stage: since the last judge()
  struct Change {
    std::uint64_t hash = 0;
    bool in_step = false;
    bool told = false;  // to all ranks
  };
  std::map<std::uint32_t, Change> changed_;                    // first stage: by owners, ever
  std::map<std::pair<GlobalRank, std::uint32_t>, Line> told_;  // the last of each rank and buffer
};

}  // namespace smp::server
