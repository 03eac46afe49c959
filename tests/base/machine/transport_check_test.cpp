// What is said of libraries for networks, and of the variables that they and MPI read.
#include "base/machine/transport_check.h"

#include <gmock/gmock.h>

namespace smp::base {
namespace transport_check_test {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Grade = MachineFinding::Grade;

/// With all libraries, and no variable set.
TransportFacts good_machine() {
  TransportFacts facts;
  facts.ranks = 4;
  facts.cores = 4;
  facts.ucx = {"1.13.1", "", ""};
  facts.ofi = {"1.17", "tcp;ofi_rxm", ""};
  facts.interfaces = {"eth0", "lo", "mlx5_0"};
  return facts;
}

TEST(TransportCheck, OfAGoodMachineSaysWhatThereIsAndNothingToDo) {
  std::vector<std::string> said;
  for (const auto& each : check_transports(good_machine())) {
    EXPECT_EQ(each.grade, Grade::kGood) << each.what << ": " << each.found;
    EXPECT_THAT(each.remedy, IsEmpty()) << each.what;
    said.push_back(each.what + ": " + each.found);
  }
  EXPECT_THAT(
      said,
      ElementsAre("UCX: 1.13.1, for transport = ucx; no UCX_* variable is set",
                  "libfabric: 1.17 over tcp;ofi_rxm, for transport = ofi; no FI_* variable is set",
                  "MPI settings: no OMPI_MCA_* variable is set"));
}

TEST(TransportCheck, ListsTheVariablesOfEach) {
  auto facts = good_machine();
  facts.transport = "ucx";
  facts.environment = {{"UCX_TLS", "tcp,self"},
                       {"UCX_NET_DEVICES", "eth0"},
                       {"FI_TCP_IFACE", "lo"},
                       {"OMPI_MCA_pml", "ob1"}};
  std::vector<std::string> found;
  for (const auto& each : check_transports(facts)) found.push_back(each.found);
  EXPECT_THAT(found, ElementsAre("1.13.1; UCX_NET_DEVICES = eth0, UCX_TLS = tcp,self",
                                 HasSubstr("; FI_TCP_IFACE = lo"), "OMPI_MCA_pml = ob1"));
}

struct Case {
  void (*make)(TransportFacts&);
  const char* what;
  const char* found;
  const char* remedy;
  Grade grade = Grade::kNote;
};

/// Each spoils one thing only: whatever else is found is good.
const Case kFlaws[] = {
    {[](TransportFacts& f) {
       f.transport = "ucx";
       f.ucx = {"", "", "loading UCX failed: no such file; install it (Debian: libucx0)"};
     },
     "UCX", "transport = ucx needs it: loading UCX failed: no such file; no UCX_*",
     "install it (Debian: libucx0)", Grade::kBroken},
    {[](TransportFacts& f) {
       f.transport = "ofi";
       f.ofi = {"", "", "no reason"};
     },
     "libfabric", "needs it: no reason", "transport = auto", Grade::kBroken},
    {[](TransportFacts& f) { f.environment["UCX_TLS"] = "self,sm, cma"; }, "UCX",
     "UCX_TLS = self,sm, cma reaches no other machine", "tcp"},
    {[](TransportFacts& f) { f.environment["UCX_NET_DEVICES"] = "eth0,eth7,mlx5_1:1"; }, "UCX",
     "UCX_NET_DEVICES names eth7, mlx5_1, which", "eth0, lo, mlx5_0"},
    {[](TransportFacts& f) {
       f.transport = "ucx";
       f.environment["UCX_NET_DEVICES"] = "eth7";
     },
     "UCX", "names eth7", "unset UCX_NET_DEVICES", Grade::kBroken},
    {[](TransportFacts& f) {
       f.transport = "ofi";
       f.environment["FI_TCP_IFACE"] = "eth7";
     },
     "libfabric", "FI_TCP_IFACE names eth7", "unset FI_TCP_IFACE", Grade::kBroken},
    {[](TransportFacts& f) { f.ofi.uses = "shm"; }, "libfabric", "shm reaches no other machine",
     "FI_PROVIDER"},
    {[](TransportFacts& f) {
       f.transport = "ofi";
       f.fast_network = true;
     },
     "libfabric", "TCP is used, and there is a faster adapter", "fi_info"},
    {[](TransportFacts& f) { f.ranks = 5; }, "MPI settings", "5 ranks take turns on 4 cores",
     "mpi_yield_when_idle 1"},
    {[](TransportFacts& f) {
       f.ranks = 2;
       f.cores = 1;
       f.environment["OMPI_MCA_mpi_yield_when_idle"] = "0";
     },
     "MPI settings", "2 ranks take turns on 1 core,", "OMPI_MCA_mpi_yield_when_idle=1"},
    {[](TransportFacts& f) { f.reads_other_processes = false; }, "MPI settings",
     "which is forbidden here", "btl_vader_single_copy_mechanism=none"},
    {[](TransportFacts& f) {
       f.transport = "mpi";
       f.environment["OMPI_MCA_btl_vader_single_copy_mechanism"] = "none";
     },
     "MPI settings", "copies large messages twice", "unset OMPI_MCA_btl_vader_single"},
    {[](TransportFacts& f) {
       f.ucx.version.clear();
       f.environment["OMPI_MCA_pml"] = "ucx";
     },
     "MPI settings", "OMPI_MCA_pml = ucx, and UCX is not there", "ob1", Grade::kBroken},
    {[](TransportFacts& f) { f.environment["OMPI_MCA_btl"] = "vader,tcp"; }, "MPI settings",
     "OMPI_MCA_btl = vader,tcp: without self", "add self", Grade::kBroken},
    {[](TransportFacts& f) {
       f.transport = "mpi";
       f.environment["OMPI_MCA_btl"] = "self,tcp";
     },
     "MPI settings", "OMPI_MCA_btl = self,tcp: ranks of a machine", "add vader"},
    {[](TransportFacts& f) {
       f.transport = "mpi";
       f.environment["OMPI_MCA_btl"] = "^vader";
     },
     "MPI settings", "OMPI_MCA_btl = ^vader: ranks of a machine", "unset OMPI_MCA_btl"},
};

TEST(TransportCheck, NamesEachFlawAndItsRemedy) {
  for (const Case& flaw : kFlaws) {
    auto facts = good_machine();
    flaw.make(facts);
    int flaws_found = 0;
    for (const auto& each : check_transports(facts)) {
      if (each.grade == Grade::kGood) continue;
      ++flaws_found;
      EXPECT_EQ(each.what, flaw.what) << each.found;
      EXPECT_EQ(each.grade, flaw.grade) << each.found;
      EXPECT_THAT(each.found, HasSubstr(flaw.found));
      EXPECT_THAT(each.remedy, HasSubstr(flaw.remedy));
    }
    EXPECT_EQ(flaws_found, 1) << flaw.found;
  }
}

/// What looks like a flaw and is none.
TEST(TransportCheck, LeavesAloneWhatIsRightOrNotInUse) {
  const Case cases[] = {
      {[](TransportFacts& f) {
         f.ucx = {"", "", "no such file; install it"};
       },
       "UCX", "only transport = ucx needs it: no such file; no UCX_* variable is set", ""},
      {[](TransportFacts& f) { f.environment["UCX_TLS"] = "^tcp"; }, "UCX", "UCX_TLS = ^tcp", ""},
      {[](TransportFacts& f) { f.environment["UCX_TLS"] = "sm,rc_x"; }, "UCX", "sm,rc_x", ""},
      {[](TransportFacts& f) { f.environment["UCX_NET_DEVICES"] = "mlx5_[0-3]:1"; }, "UCX",
       "mlx5_[0-3]:1", ""},
      {[](TransportFacts& f) { f.environment["UCX_NET_DEVICES"] = "all"; }, "UCX", "= all", ""},
      {[](TransportFacts& f) {
         f.interfaces.clear();
         f.environment["UCX_NET_DEVICES"] = "eth7";
       },
       "UCX", "eth7", ""},
      {[](TransportFacts& f) { f.fast_network = true; }, "libfabric", "tcp", ""},
      {[](TransportFacts& f) {
         f.ranks = 9;
         f.environment["OMPI_MCA_mpi_yield_when_idle"] = "true";
       },
       "MPI settings", "mpi_yield_when_idle = true", ""},
      {[](TransportFacts& f) {
         f.reads_other_processes = false;
         f.environment["OMPI_MCA_btl_vader_single_copy_mechanism"] = "none";
       },
       "MPI settings", "= none", ""},
      {[](TransportFacts& f) {
         f.environment["OMPI_MCA_btl_vader_single_copy_mechanism"] = "none";
       },
       "MPI settings", "= none", ""},
      {[](TransportFacts& f) {
         f.transport = "mpi";
         f.environment["OMPI_MCA_btl"] = "^openib";
       },
       "MPI settings", "= ^openib", ""},
      {[](TransportFacts& f) { f.environment["OMPI_MCA_btl"] = "self,tcp"; }, "MPI settings",
       "= self,tcp", ""},
      {[](TransportFacts& f) {
         f.environment["OMPI_MCA_pml"] = "ucx";
         f.environment["OMPI_MCA_btl"] = "tcp";
       },
       "MPI settings", "OMPI_MCA_btl = tcp, OMPI_MCA_pml = ucx", ""},
  };
  for (const Case& each : cases) {
    auto facts = good_machine();
    each.make(facts);
    bool said = false;
    for (const auto& finding : check_transports(facts)) {
      EXPECT_EQ(finding.grade, Grade::kGood) << finding.found;
      said |= finding.what == each.what && finding.found.find(each.found) != std::string::npos;
    }
    EXPECT_TRUE(said) << each.found;
  }
}

TEST(TransportCheck, QuotesForeignTextInShort) {
  auto facts = good_machine();
  facts.environment["UCX_LOG_FILE"] = "a\n" + std::string(5000, 'x');
  const auto found = check_transports(facts).front().found;
  EXPECT_LT(found.size(), 300u);
  EXPECT_EQ(found.find('\n'), std::string::npos);
}

}  // namespace transport_check_test
}  // namespace smp::base
