// d2d/wire/members.cpp: see the header.
#include "d2d/wire/members.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace smp::d2d {

namespace {
constexpr int kMostShown = 16;
}

Members::Members(std::vector<GlobalRank> ranks, std::string name) : ranks_(std::move(ranks)) {
  for (int position = 0; position < size(); ++position) {
    const GlobalRank rank = (*this)[position];
    SMP_REQUIRE(rank.value() >= 0, "a group of ranks names rank ", rank,
                "; ranks are numbered from 0.");
    if (positions_.size() <= rank.index()) positions_.resize(rank.index() + 1, -1);
    SMP_REQUIRE(positions_[rank.index()] < 0, "a group of ranks names rank ", rank,
                " twice; name every member once.");
    positions_[rank.index()] = position;
  }
  text_ = base::concat(name, ' ', *this);
}

Members Members::all(int size) {
  std::vector<GlobalRank> ranks;
  for (int rank = 0; rank < size; ++rank) ranks.emplace_back(rank);
  return Members(std::move(ranks));
}

std::ostream& operator<<(std::ostream& out, const Members& members) {
  const int last = members.size() - 1;
  const int shown = last < kMostShown ? last : kMostShown / 2;
  out << '{';
  for (int position = 0; position < shown; ++position) out << members[position] << ", ";
  if (shown < last) out << "..., ";
  if (last >= 0) out << members[last];
  return out << '}';
}

}  // namespace smp::d2d
