// What is said of machines that are fit for a job, slow, or unfit.
#include "base/machine/machine_check.h"

#include <gmock/gmock.h>

namespace smp::base {
namespace machine_check_test {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using Grade = MachineFinding::Grade;

MachineFacts good_machine() {
  MachineFacts facts;
  facts.ranks = 4;
  facts.cores = 8;
  facts.memory = std::int64_t{32} << 30;
  facts.shared_room = std::int64_t{1} << 30;
  facts.open_files = 1024;
  facts.blas = "mkl";
  facts.gflops = 90;
  facts.mpi.version = "mpirun (Open MPI) 4.1.4";
  facts.mpi.start_seconds = 0.3;
  return facts;
}

MachineFinding finding(const std::string& what, const MachineFacts& facts) {
  for (const auto& each : check_machine(facts)) {
    if (each.what == what) return each;
  }
  ADD_FAILURE() << "nothing is said of " << what;
  return {};
}

TEST(MachineCheck, FindsNothingToDoOnAGoodMachine) {
  const auto findings = check_machine(good_machine());
  EXPECT_EQ(findings.size(), 10u);
  for (const auto& each : findings) {
    EXPECT_EQ(each.grade, Grade::kGood) << each.what << ": " << each.found;
    EXPECT_THAT(each.found, testing::Not(IsEmpty())) << each.what;
    EXPECT_THAT(each.remedy, IsEmpty()) << each.what;
  }
}

TEST(MachineCheck, NamesGpusThatAllRanksHave) {
  auto facts = good_machine();
  facts.gpus.names = {"NVIDIA H100", "NVIDIA H100", "NVIDIA A2", "NVIDIA H100"};
  facts.gpus.seen_by_torch = 4;
  EXPECT_EQ(finding("GPUs", facts).grade, Grade::kGood);
  EXPECT_EQ(finding("GPUs", facts).found, "1 x NVIDIA A2, 3 x NVIDIA H100");
  facts.gpus.names.clear();  // as in some containers
  EXPECT_EQ(finding("GPUs", facts).found, "4");
}

struct Flaw {
  const char* what;
  Grade grade;
  void (*make)(MachineFacts&);
  const char* found;
  const char* remedy;
};

/// Each spoils one thing only.
const Flaw kFlaws[] = {
    {"cores", Grade::kNote, [](MachineFacts& m) { m.ranks = 9; }, "8 for 9 ranks", "fewer ranks"},
    {"cores", Grade::kNote, [](MachineFacts& m) { m.processors = 1.5; }, "the cgroup lets 1.5 run",
     "fewer ranks"},
    {"products", Grade::kNote, [](MachineFacts& m) { m.gflops = 2; }, "mkl, 2 GFLOP/s",
     "SMP_TORCH_DIR"},
    {"GPUs", Grade::kNote, [](MachineFacts& m) { m.gpus.names = {"NVIDIA H100"}; },
     "1 x NVIDIA H100, and this LibTorch is built without CUDA", "SMP_TORCH_DIR"},
    {"GPUs", Grade::kNote,
     [](MachineFacts& m) {
       m.gpus.names = {"NVIDIA H100"};
       m.gpus.seen_by_torch = 0;
     },
     "of which LibTorch sees none", "CUDA_VISIBLE_DEVICES"},
    {"GPUs", Grade::kNote,
     [](MachineFacts& m) {
       m.gpus.names = {"NVIDIA H100", "NVIDIA H100", "NVIDIA H100", "NVIDIA H100"};
       m.gpus.seen_by_torch = 2;
     },
     "4 x NVIDIA H100, of which LibTorch sees 2 for 4 ranks", "start 2 ranks"},
    {"MPI", Grade::kBroken, [](MachineFacts& m) { m.mpi.version.clear(); }, "no mpirun", "apt-get"},
    {"MPI", Grade::kBroken,
     [](MachineFacts& m) {
       m.mpi.starts = false;
       m.mpi.said = "-----\nThere are not\nenough slots.\n\nMore of it\n";
     },
     "cannot start a job here: There are not enough slots.", "--allow-run-as-root"},
    {"MPI", Grade::kBroken, [](MachineFacts& m) { m.mpi.starts = false; }, "does not say why",
     "--allow-run-as-root"},
    {"paths", Grade::kBroken,
     [](MachineFacts& m) {
       m.transport = "ucx";
       m.mpi.paths_work = false;
       m.mpi.said = "[smp W rank 0] noise\nerror: rank 1: there is no UCX; install it, or do not\n";
     },
     "with transport = ucx a job fails: rank 1: there is no UCX", "install it, or do not"},
    {"paths", Grade::kBroken, [](MachineFacts& m) { m.mpi.paths_work = false; },
     "with transport = auto a job fails: it does not say why", "SMP_TRANSPORT=auto"},
    {"MPI", Grade::kNote, [](MachineFacts& m) { m.mpi.start_seconds = 5; }, "starts in 5 s",
     "vader"},
    {"/dev/shm", Grade::kBroken, [](MachineFacts& m) { m.shared_room = 19 << 20; },
     "19 MiB free, Open MPI wants 20 MiB for 4 ranks", "--shm-size"},
    {"/dev/shm", Grade::kBroken, [](MachineFacts& m) { m.shared_room = -1; }, "none",
     "backing_directory"},
    {"large tensors", Grade::kNote, [](MachineFacts& m) { m.reads_other_processes = false; },
     "copied twice", "ptrace_scope"},
    {"open files", Grade::kNote, [](MachineFacts& m) { m.open_files = 35; },
     "35 a process, about 36 are needed for 4 ranks", "ulimit -n 72"},
    {"longest file", Grade::kNote, [](MachineFacts& m) { m.longest_file = 4 << 20; },
     "4 MiB: ranks lend no tensors", "ulimit -f unlimited"},
    {"locked memory", Grade::kNote,
     [](MachineFacts& m) {
       m.fast_network = true;
       m.locked_memory = 64 << 10;
     },
     "InfiniBand", "ulimit -l"},
};

TEST(MachineCheck, NamesEachFlawAndItsRemedy) {
  for (const Flaw& flaw : kFlaws) {
    auto facts = good_machine();
    flaw.make(facts);
    finding(flaw.what, facts);  // or the loop might find nothing to look at
    for (const auto& each : check_machine(facts)) {
      if (each.what != flaw.what) {
        EXPECT_EQ(each.grade, Grade::kGood) << each.what << " beside " << flaw.what;
        continue;
      }
      EXPECT_EQ(each.grade, flaw.grade) << each.what << ": " << each.found;
      EXPECT_THAT(each.found, HasSubstr(flaw.found));
      EXPECT_THAT(each.remedy, HasSubstr(flaw.remedy));
    }
  }
}

TEST(MachineCheck, WithoutANumberOfRanksThereIsOneForEachCoreThatMayRun) {
  auto facts = good_machine();
  facts.ranks = 0;
  EXPECT_THAT(finding("cores", facts).found, HasSubstr("8 for 8 ranks"));
  facts.processors = 1.5;
  EXPECT_THAT(finding("cores", facts).found,
              AllOf(HasSubstr("8 for 1 rank"), HasSubstr("lets 1.5 run")));
  EXPECT_EQ(finding("cores", facts).grade, Grade::kGood);
}

TEST(MachineCheck, QuotesOnlyTheFirstParagraphOfAJobThatDoesNotStart) {
  auto facts = good_machine();
  facts.mpi.starts = false;
  facts.mpi.said = "----\n\nNo\nslots.\n \nMuch more.\n";
  EXPECT_THAT(finding("MPI", facts).found, testing::EndsWith(": No slots."));
}

TEST(MachineCheck, SaysNothingOfPathsWhereMpiStartsNoJob) {
  auto facts = good_machine();
  facts.mpi.starts = false;
  facts.mpi.paths_work = false;
  for (const auto& each : check_machine(facts)) EXPECT_NE(each.what, "paths");
}

TEST(MachineCheck, LittleLockedMemoryDoesNotMatterWithoutAnAdapterThatWantsIt) {
  auto facts = good_machine();
  facts.locked_memory = 64 << 10;
  EXPECT_EQ(finding("locked memory", facts).grade, Grade::kGood);
}

}  // namespace machine_check_test
}  // namespace smp::base
