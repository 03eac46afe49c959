// checkpoint/exchange.h: tensors by name from the ranks that have them to the ranks that want them,
// one at a time.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <string>
#include <vector>

#include "checkpoint/tensor_info.h"
#include "d2d/collectives/communicator.h"
#include "smp/error.h"

namespace smp::checkpoints {

/// The tensors that one rank can give to others.
struct Offer {
  std::vector<TensorInfo> tensors;
  /// Returns the values of tensors[i]. It is called in any order, and may be called again for a
  /// tensor.
  std::function<at::Tensor(std::size_t)> read;
  /// Throws what read(i) would, for less; empty: read(i) does.
  std::function<void(std::size_t)> check = {};
  /// Reads tensors[i] into a contiguous tensor of its shape in host memory, as copying what read(i)
  /// returns would; empty: values are copied there.
  std::function<void(std::size_t, const at::Tensor&)> read_into = {};
  /// Marks the tensors that all ranks which offer them must read together, because each has a part
  /// of them: one element for each of `tensors`, or empty for none. They are read on all those
  /// ranks even if another rank gives them.
  std::vector<bool> together = {};
  /// The origin of the tensors for messages, as in "the file weights.safetensors".
  std::string source = {};
  /// The reason why this rank cannot take part, or empty. If any rank has one, all ranks throw it.
  std::string problem;
  /// True if reading may fail, as from a file: then all that is wanted is checked before any of it
  /// is given, so that a failure changes nothing.
  bool read_first = false;
};

/// Returns an error as text for other ranks; empty if there is none. @throws PeerLostError  it is
/// one
std::string described(const std::exception_ptr& problem);
/// Throws what described() says, as an error of `where`, unless it is empty.
void throw_described(const std::string& described, const std::string& where);
/// Tensors that are offered for one tensor, and so must have the same values.
struct SameValues {
  std::vector<std::size_t> tensors;  ///< numbers in Exchange::tensors(): one for each of its names
  c10::ScalarType dtype;             ///< of that tensor; values count once they have it
};

/// Runs `action` and returns its exception, for other ranks to be told of it. A PeerLostError is
/// thrown at once, because then there is nobody to tell.
std::exception_ptr attempt(const std::function<void()>& action);

/// Throws on every rank if `own_problem` is set on some rank: the problem of the first rank that
/// has one. Collective over `ranks`; suspends.
/// @param what  the operation, for messages
void agree(const d2d::Communicator& ranks, const std::exception_ptr& own_problem, const char* what);

/// Collective exchange of tensors by name. All ranks of a communicator make an Exchange and call
/// the same functions in the same order. An error on one of them is thrown on all, at the same
/// place, as UsageError, ResourceError or UnsupportedError, so that nobody waits for a rank that
/// failed. Threads: the rank's; suspends.
class Exchange {
 public:
  /// Tells all ranks what each can give. @param what  for messages, as in "load_state_dict"
  /// @throws UsageError  ranks offer a tensor of one name with another shape or dtype.
  Exchange(const d2d::Communicator& ranks, Offer own, const char* what);

  /// The tensors that any rank offers: first those of the first rank, in its order, then those that
  /// only later ranks have.
  const std::vector<TensorInfo>& tensors() const { return tensors_; }

  /// Checks that each of `groups` has one value, whichever ranks give it, under one name or
  /// several. What deliver() takes from it later is not compared again. All ranks pass the same.
  /// @throws UsageError  naming two names, ranks and values that differ.
  void require_same(const std::vector<SameValues>& groups);

  /// Returns a hash of those of tensors() that are `chosen`, with their values; equal on all ranks,
  /// which all choose the same. @throws what reading does, on all of them.
  std::uint64_t fingerprint(const std::vector<bool>& chosen) const;

  /// Returns an exchange of the tensors that are `wanted` by any rank, with the values of now,
  /// whatever becomes of what was offered. Each is kept by one of the ranks that have it, so that
  /// together they keep one copy; of a file only checksums are kept. Its deliver() may be called
  /// once. It is checked first that values can be read.
  /// @param wanted  one element for each of tensors(); may differ between ranks
  Exchange kept(const std::vector<bool>& wanted) const;

  /// Gives this rank those of tensors() that it wants: its own where it has them, else those of the
  /// first rank that does. Memory: one tensor beside what `take` keeps.
  /// @param wanted  one element for each of tensors(); may differ between ranks
  /// @param take    gets the number in tensors() and the values: own ones as they are, others new
  /// @param place   returns where Offer::read_into() may put the values of that number, or nothing:
  ///                an undefined tensor; `take` does not get what it put there
  /// @throws UsageError  several ranks want a tensor, and have different values of it.
  void deliver(const std::vector<bool>& wanted,
               const std::function<void(std::size_t, const at::Tensor&)>& take,
               const std::function<at::Tensor(std::size_t)>& place = {});

  void agree(const std::exception_ptr& own_problem) const {
    checkpoints::agree(ranks_, own_problem, what_);
  }

 private:
  struct Given;
  void read_offers(const std::vector<d2d::Payload>& offers);
  std::vector<Given> given_several_times(const std::vector<SameValues>& groups) const;
  void require_same(const Given& a, const Given& b, c10::ScalarType dtype) const;
  at::Tensor on_all(const Given& given) const;
  std::function<at::Tensor(std::size_t)> copied(const std::vector<std::size_t>& numbers) const;
  std::function<at::Tensor(std::size_t)> checked_again(
      const std::vector<std::size_t>& numbers) const;
  std::vector<std::string> wishes_of_all(const std::vector<bool>& wanted) const;
  void require_readable(const std::vector<std::string>& wishes) const;
  void compare_values(const std::vector<std::string>& wishes) const;
  at::Tensor own_values(std::size_t index) const;
  void check_own_values(std::size_t index) const;
  bool put_own_values(std::size_t index, const std::function<at::Tensor(std::size_t)>& place) const;
  bool gives(int position, std::size_t index) const;
  bool reads_together(std::size_t index) const;

  d2d::Communicator ranks_;
  Offer own_;
  const char* what_;
  std::vector<TensorInfo> tensors_;
  std::vector<std::vector<std::size_t>> places_;  // by position and tensor: in its offer; or kNone
  bool compared_ = false;
};

}  // namespace smp::checkpoints
