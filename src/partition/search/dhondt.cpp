// partition/search/dhondt.cpp: the largest quotient wins the next seat.
#include "partition/search/dhondt.h"

namespace smp::partitioning {
namespace {

/// Costs are sums in floating point: quotients that differ by less than this share are equal.
constexpr double kEqual = 1e-9;

class Deal {
 public:
  Deal(const std::vector<Claim>& claims, SeatTies ties)
      : claims_(claims), ties_(ties), held_(claims.size(), 0), count_(claims.size(), 0) {}

  /// The index of the claim that gets a seat of that size; -1 if none can use it.
  int next(double seat) {
    int winner = -1;
    for (std::size_t i = 0; i < claims_.size(); ++i) {
      if (count_[i] == claims_[i].most) continue;
      if (winner < 0 || beats(static_cast<int>(i), winner, seat)) winner = static_cast<int>(i);
    }
    if (winner < 0) return -1;
    held_[winner] += seat;
    ++count_[winner];
    return winner;
  }

 private:
  bool beats(int later, int earlier, double seat) const {
    const double own = claims_[later].cost / (held_[later] + seat);
    const double other = claims_[earlier].cost / (held_[earlier] + seat);
    if (own > other * (1 + kEqual)) return true;
    const bool equal = own >= other * (1 - kEqual);
    return equal && ties_ == SeatTies::kFewestSeats && count_[later] < count_[earlier];
  }

  const std::vector<Claim>& claims_;
  const SeatTies ties_;
  std::vector<double> held_;  // sizes of the seats
  std::vector<int> count_;
};

}  // namespace

std::vector<int> deal_seats(const std::vector<Claim>& claims, const std::vector<double>& seats,
                            SeatTies ties) {
  Deal deal(claims, ties);
  std::vector<int> owners;
  for (const double seat : seats) owners.push_back(deal.next(seat));
  return owners;
}

}  // namespace smp::partitioning
