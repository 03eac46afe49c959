// partition/dhondt.cpp: the largest quotient wins the next seat.
#include "partition/dhondt.h"

namespace smp::partitioning {

std::vector<int> deal_seats(const std::vector<Claim>& claims, const std::vector<double>& seats) {
  std::vector<double> held(claims.size(), 0);  // sizes of the seats
  std::vector<int> count(claims.size(), 0);
  std::vector<int> owners;
  for (const double seat : seats) {
    int winner = -1;
    double largest = 0;
    for (std::size_t i = 0; i < claims.size(); ++i) {
      const double quotient = claims[i].cost / (held[i] + seat);
      if (count[i] == claims[i].most || (winner >= 0 && quotient <= largest)) continue;
      winner = static_cast<int>(i);
      largest = quotient;
    }
    owners.push_back(winner);
    if (winner < 0) continue;
    held[winner] += seat;
    ++count[winner];
  }
  return owners;
}

}  // namespace smp::partitioning
