// partition/search/dhondt.h: shares out stages in proportion to costs, as seats are to votes.
// Paper: App. C.4, Algorithm 3.
#pragma once

#include <cstdint>
#include <vector>

namespace smp::partitioning {

/// One party that asks for seats.
struct Claim {
  double cost = 0;
  int most = 0;  ///< the most seats that it can use
};

/// The rule for a seat to which several claims have equal rights.
enum class SeatTies : std::uint8_t {
  kFewestSeats,  ///< the one with fewer seats, then the first: equal claims get equally many
  kFirst,        ///< the first
};

/// Deals the seats one by one, each to the claim with the largest cost / (seats it has + this one):
/// the method of D'Hondt. The algorithm as printed divides by the number of all seats dealt so far,
/// which favours the small ones and leaves stages idle.
/// @param seats  the size of each, in the order of dealing; 1 for stages of equal speed
/// @return  for each seat the index of its claim; -1 once none can use it.
std::vector<int> deal_seats(const std::vector<Claim>& claims, const std::vector<double>& seats,
                            SeatTies ties = SeatTies::kFewestSeats);

}  // namespace smp::partitioning
