// api/rank/agreement.h: ranks find out together whether what they ought to have alike is alike, and
// if not, what differs.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "d2d/collectives/communicator.h"
#include "smp/rank.h"

namespace smp {

/// Something that ranks ought to have alike.
struct Fact {
  std::string name;
  std::string value;
  std::string origin = {};  ///< said beside the value; may differ
};
using Facts = std::vector<Fact>;

/// Short, and another one for each number.
std::string text_of(double number);

/// For others, and as they came.
std::string to_bytes(const Facts& facts);
Facts to_facts(const std::string& bytes);

/// "lr: 0.1 on rank 0, 0.2 on rank 1": of each fact of which some rank has another value than the
/// first, or does not know it, in order of the facts. Of facts of one name the first belong
/// together, then the second.
/// @param all  of each of `ranks`
std::vector<std::string> differences(const std::vector<GlobalRank>& ranks,
                                     const std::vector<Facts>& all);

/// The text of every rank, in order of ranks. All call it.
using GatherTexts = std::function<std::vector<std::string>(const std::string& own)>;

/// Which facts differ is found out only where their hashes do. Collective.
/// @param whose  "the settings of the ranks"
/// @throws UsageError  on every rank: `whose` differ, each fact that does with both values, and
///                     `remedy`.
void require_same(const GatherTexts& gather, const std::vector<GlobalRank>& ranks, const Facts& own,
                  const char* whose, const char* remedy);
/// Among ranks that are connected.
void require_same(const d2d::Communicator& ranks, const Facts& own, const char* whose,
                  const char* remedy);
/// Requires that a number, which people know, is equal on all ranks. @throws like require_same()
void require_equal(const d2d::Communicator& ranks, std::uint64_t value, const char* what,
                   const char* remedy);
/// Requires that a hash, which tells people nothing, is equal on all ranks. Collective.
/// @throws UsageError  on every rank: the first rank that differs from the first one in `what`, and
///                     `remedy`
void require_equal_hashes(const d2d::Communicator& ranks, std::uint64_t hash, const char* what,
                          const char* remedy);

}  // namespace smp
