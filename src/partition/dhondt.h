// partition/dhondt.h: shares out stages in proportion to costs, as seats are to votes. Paper: App.
// C.4, Algorithm 3.
#pragma once

#include <vector>

namespace smp::partitioning {

/// Who asks for seats.
struct Claim {
  double cost = 0;
  int most = 0;  ///< seats it can use
};

/// Deals the seats one by one, each to the claim with the largest cost / (seats it has + this one):
/// the method of D'Hondt. The algorithm as printed divides by the number of all seats dealt so far,
/// which favours the small ones and leaves stages idle.
/// @param seats  the size of each, in the order of dealing; 1 for stages of equal speed
/// @return  for each seat the index of its claim, the first of equal ones; -1 once none can use it.
std::vector<int> deal_seats(const std::vector<Claim>& claims, const std::vector<double>& seats);

}  // namespace smp::partitioning
