// d2d/channel/route.cpp: see the header.
#include "d2d/channel/route.h"

#include <algorithm>
#include <array>
#include <sstream>
#include <utility>

#include "base/check.h"
#include "d2d/lend/loans.h"
#include "d2d/watch/keep_alive.h"

namespace smp::d2d {
namespace {

constexpr std::array<const char*, kMemoryKinds> kMemoryNames{"host", "cuda", "neuron"};

Members union_of_members(const std::vector<WireUse>& uses) {
  Members members;
  for (const WireUse& use : uses) {
    std::vector<GlobalRank> ranks = members.ranks();
    for (const GlobalRank rank : use.wire->members()) {
      if (!members.contain(rank)) ranks.push_back(rank);
    }
    members = Members(std::move(ranks));
  }
  return members;
}

// The number of the first wire for which `carries` holds.
template <class Carries>
std::uint8_t first_wire(const std::vector<WireUse>& uses, const Carries& carries) {
  for (std::size_t i = 0; i < uses.size(); ++i) {
    if (carries(uses[i])) return static_cast<std::uint8_t>(i);
  }
  return kNoWire;
}

}  // namespace

std::vector<WireUse> Routes::for_everything(std::unique_ptr<Wire> wire) {
  std::vector<WireUse> uses;
  uses.push_back({std::move(wire)});
  return uses;
}

Routes::Routes(std::vector<WireUse> wires) : Routes(std::move(wires), nullptr) {}

Routes::Routes(std::vector<WireUse> wires, std::unique_ptr<Loans> loans)
    : Routes(std::move(wires), std::move(loans), nullptr) {}

Routes::Routes(std::vector<WireUse> wires, std::unique_ptr<Loans> loans,
               std::unique_ptr<KeepAlive> keep_alive)
    : loans_(std::move(loans)), wires_(std::move(keep_alive)) {
  SMP_REQUIRE(!wires.empty() && wires.size() < kNoWire, "routes over ", wires.size(),
              " wires; between 1 and ", int{kNoWire} - 1, " are possible.");
  for (const WireUse& use : wires) {
    SMP_REQUIRE(use.wire->rank() == wires.front().wire->rank(), "a wire of rank ", use.wire->rank(),
                " among the wires of rank ", wires.front().wire->rank(),
                "; give a channel the wires of one rank.");
  }
  members_ = union_of_members(wires);
  choose(wires);
  for (WireUse& use : wires) {
    const bool used = uses(static_cast<std::uint8_t>(wires_.size()));
    wires_.add(std::move(use.wire), used);
  }
  for (const GlobalRank peer : members_) {
    if (peer == rank()) continue;
    const bool complete = row(peer).control != kNoWire && data(peer, MemoryKind::kHost) != kNoWire;
    SMP_REQUIRE(complete, "rank ", rank(), ": no wire for all that rank ", peer,
                " may be sent; each peer needs one for control bytes and one for data in host "
                "memory. The routes:\n",
                table());
  }
}

Routes::Routes(Routes&&) noexcept = default;
Routes::~Routes() = default;

Loans* Routes::loans(GlobalRank peer) const {
  return loans_ && loans_->reaches(peer) ? loans_.get() : nullptr;
}

void Routes::choose(const std::vector<WireUse>& uses) {
  for (const GlobalRank peer : members_) {
    Row& row = rows_.emplace_back();
    row.control = first_wire(
        uses, [peer](const WireUse& use) { return use.control && use.wire->reaches(peer); });
    for (std::size_t kind = 0; kind < kMemoryKinds; ++kind) {
      row.data[kind] = first_wire(uses, [peer, kind](const WireUse& use) {
        return use.data && use.wire->reaches(peer) &&
               use.wire->reaches(static_cast<MemoryKind>(kind));
      });
    }
  }
}

bool Routes::uses(std::uint8_t wire) const {
  return std::any_of(rows_.begin(), rows_.end(), [wire](const Row& row) {
    return row.control == wire || std::count(row.data.begin(), row.data.end(), wire) > 0;
  });
}

void Routes::take_back_loans() {
  if (loans_) loans_->take_back();
}

std::string Routes::path(GlobalRank peer, MemoryKind memory) const {
  std::string control_name = control(peer).name();
  if (memory != MemoryKind::kHost) {
    const auto direct = data(peer, memory);
    if (direct != kNoWire)
      return base::concat(control_name, ", tensors over ", wires_[direct].name());
    return base::concat(path(peer), ", tensors through host memory");
  }
  const auto number = data(peer, memory);
  if (loans(peer) != nullptr) return base::concat(control_name, ", large tensors lent");
  if (&wires_[number] == &control(peer)) return control_name;
  return base::concat(control_name, ", tensors over ", wires_[number].name());
}

std::vector<std::pair<std::string, std::vector<GlobalRank>>> Routes::paths(
    MemoryKind memory) const {
  std::vector<std::pair<std::string, std::vector<GlobalRank>>> all;
  for (const GlobalRank peer : members_) {
    if (peer == rank()) continue;
    auto next = path(peer, memory);
    if (all.empty() || all.back().first != next)
      all.emplace_back(std::move(next), std::vector<GlobalRank>());
    all.back().second.push_back(peer);
  }
  return all;
}

std::string Routes::table() const {
  const auto name = [this](std::uint8_t wire) {
    return wire == kNoWire ? std::string("-") : base::concat(wires_[wire].name(), ' ', int{wire});
  };
  std::ostringstream text;
  text << "rank " << rank() << " to  control";
  for (const char* memory : kMemoryNames) text << "  " << memory << " data";
  for (const GlobalRank peer : members_) {
    if (peer == rank()) continue;
    text << "\n" << peer << "  " << name(row(peer).control);
    for (const std::uint8_t wire : row(peer).data) text << "  " << name(wire);
  }
  return text.str();
}

}  // namespace smp::d2d
