// config/topology.cpp: ranks as numbers in a mixed base whose digits are the parallel axes.
#include "smp/topology.h"

#include <algorithm>
#include <cctype>

#include "base/check.h"

namespace smp {
namespace {

// The digit that `letter` stands for.
template <class Place>
auto& digit(Place& place, char letter) {
  return letter == 'D' ? place.rdp : letter == 'P' ? place.pp : place.tp;
}

void check(const Arrangement& wanted, int rank, const std::string& letters) {
  SMP_REQUIRE(!letters.empty(), "placement_strategy \"", wanted.placement,
              "\": expected cluster, spread or a permutation of the letters D, P and T");
  SMP_REQUIRE(wanted.world_size >= 1 && wanted.pp_size >= 1 && wanted.tp_size >= 1, "world size ",
              wanted.world_size, ", pipeline degree ", wanted.pp_size, " and tensor degree ",
              wanted.tp_size, " must be at least 1");
  const int replica = wanted.pp_size * wanted.tp_size;
  SMP_REQUIRE(wanted.world_size % replica == 0, wanted.world_size,
              " ranks cannot be divided into replicas of pipeline degree ", wanted.pp_size,
              " x tensor degree ", wanted.tp_size, " = ", replica, " ranks");
  SMP_REQUIRE(rank >= 0 && rank < wanted.world_size, "rank ", rank, " is not in a world of ",
              wanted.world_size, " ranks");
  SMP_REQUIRE(wanted.machine_of_rank.empty() ||
                  static_cast<int>(wanted.machine_of_rank.size()) == wanted.world_size,
              "machine_of_rank names ", wanted.machine_of_rank.size(), " ranks of ",
              wanted.world_size);
}

}  // namespace

std::string placement_letters(std::string_view strategy) {
  if (strategy == "cluster") return "DPT";
  if (strategy == "spread") return "TPD";
  std::string letters(strategy);
  for (char& letter : letters)
    letter = static_cast<char>(std::toupper(static_cast<unsigned char>(letter)));
  std::string sorted = letters;
  std::sort(sorted.begin(), sorted.end());
  return sorted == "DPT" ? letters : std::string();
}

Topology::Topology(const Arrangement& arrangement, int rank)
    : world_size_(arrangement.world_size),
      rank_(rank),
      letters_(placement_letters(arrangement.placement)),
      machine_of_rank_(arrangement.machine_of_rank) {
  check(arrangement, rank, letters_);
  sizes_.pp = arrangement.pp_size;
  sizes_.tp = arrangement.tp_size;
  sizes_.rdp = world_size_ / (sizes_.pp * sizes_.tp);
  if (machine_of_rank_.empty()) machine_of_rank_.assign(world_size_, 0);
}

Coordinates Topology::coordinates(int rank) const {
  Coordinates place;
  for (auto letter = letters_.rbegin(); letter != letters_.rend(); ++letter) {
    digit(place, *letter) = rank % digit(sizes_, *letter);
    rank /= digit(sizes_, *letter);
  }
  return place;
}

int Topology::rank_at(const Coordinates& place) const {
  int rank = 0;
  for (char letter : letters_) rank = rank * digit(sizes_, letter) + digit(place, letter);
  return rank;
}

bool Topology::share_group(Group which, int a, int b) const {
  const Coordinates x = coordinates(a);
  const Coordinates y = coordinates(b);
  switch (which) {
    case Group::kWorld:
      return true;
    case Group::kMp:
      return x.rdp == y.rdp;
    case Group::kPp:
      return x.rdp == y.rdp && x.tp == y.tp;
    case Group::kTp:
      return x.rdp == y.rdp && x.pp == y.pp;
    case Group::kDp:
      return x.pp == y.pp;
    case Group::kRdp:
      return x.pp == y.pp && x.tp == y.tp;
    case Group::kLocal:
      return machine_of_rank_[a] == machine_of_rank_[b];
  }
  return false;
}

std::vector<int> Topology::group(Group which, int of_rank) const {
  std::vector<int> ranks;
  for (int other = 0; other < world_size_; ++other) {
    if (share_group(which, of_rank, other)) ranks.push_back(other);
  }
  return ranks;
}

int Topology::group_rank(Group which, int of_rank) const {
  int number = 0;
  for (int other = 0; other < of_rank; ++other) number += share_group(which, of_rank, other);
  return number;
}

std::vector<std::vector<int>> Topology::groups(Group which) const {
  std::vector<std::vector<int>> all;
  for (int rank = 0; rank < world_size_; ++rank) {
    if (group_rank(which, rank) == 0) all.push_back(group(which, rank));
  }
  return all;
}

}  // namespace smp
