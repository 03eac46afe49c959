// What is found of Neuron devices in a folder that stands for /, and what is said of it.
#include "base/machine/neuron_files.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "base/machine/neuron_check.h"

namespace smp::base {
namespace neuron_files_test {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using Grade = MachineFinding::Grade;

/// A folder that stands for /, with files as they are added.
class Neuron : public testing::Test {
 protected:
  Neuron() {
    auto pattern = (fs::temp_directory_path() / "smp-neuron-XXXXXX").string();
    root_ = ::mkdtemp(pattern.data());
  }
  ~Neuron() override { fs::remove_all(root_); }

  void file(const fs::path& path, const std::string& content = "") const {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path, std::ios::binary) << content;
  }
  void pci(int slot, const std::string& device) const {
    const auto folder = fs::path("sys/bus/pci/devices") / ("0000:00:" + std::to_string(slot));
    file(folder / "vendor", "0x1d0f\n");
    file(folder / "device", device + "\n");
  }
  void adapter(const std::string& name, const std::string& vendor = "0x1d0f") const {
    file(fs::path("sys/class/infiniband") / name / "device/vendor", vendor + "\n");
  }
  void process(int number, const std::vector<int>& devices,
               const std::vector<std::string>& environment) const {
    const auto folder = fs::path("proc") / std::to_string(number);
    file(folder / "comm", "python3\n");
    std::string text;
    for (const auto& variable : environment) text += variable + '\0';
    file(folder / "environ", text);
    fs::create_directories(root_ / folder / "fd");
    int next = 0;
    fs::create_symlink("/dev/null", root_ / folder / "fd" / std::to_string(next++));
    for (const int device : devices) {
      fs::create_symlink("/dev/neuron" + std::to_string(device),
                         root_ / folder / "fd" / std::to_string(next++));
    }
  }
  /// As a trn1.32xlarge, in good order.
  void fill() const {
    pci(1, "0x8061");  // a disk of the same vendor
    for (int i = 0; i < 16; ++i) {
      pci(10 + i, "0x7164");
      file("dev/neuron" + std::to_string(i));
      if (i < 8) adapter("rdmap" + std::to_string(10 + i) + "s27");
    }
    file("dev/neuron_extra");
    file("sys/module/neuron/version", "2.28.4.0\n");
    file("opt/aws/neuron/lib/libnrt.so.2.34.10.0");
    file("opt/aws/neuron/lib/libnrt.so.1");
    file("opt/aws/neuron/lib/libnccom.so.2.30.1");
    file("proc/sys/kernel/osrelease", "6.8.0-1021-aws\n");
  }

  NeuronFacts facts() const { return look_at_neuron(root_.string()); }
  MachineFinding finding(const std::string& what) const {
    for (const auto& each : check_neuron(facts())) {
      if (each.what == what) return each;
    }
    ADD_FAILURE() << "nothing is said of " << what;
    return {};
  }

  fs::path root_;
};

TEST_F(Neuron, IsPassedOverInSilenceWhereThereIsNone) {
  EXPECT_THAT(check_neuron(facts()), IsEmpty());
  file("opt/aws/neuron/lib/libnrt.so.2.34.10.0");  // a machine to build on
  file("sys/module/neuron/version", "2.28.4.0\n");
  file("dev/neuron");
  adapter("rdmap10s27");
  pci(1, "0x8061");
  process(7, {}, {"NEURON_RT_NUM_CORES=2"});
  EXPECT_FALSE(facts().any());
  EXPECT_THAT(check_neuron(facts()), IsEmpty());
  EXPECT_THAT(check_neuron(look_at_neuron("/no such folder")), IsEmpty());
}

TEST_F(Neuron, IsFoundInTheFilesOfAMachine) {
  fill();
  const auto found = facts();
  EXPECT_EQ(found.kind, "Trainium");
  EXPECT_EQ(found.on_bus, 16);
  EXPECT_THAT(found.devices, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
  EXPECT_EQ(found.driver, "2.28.4.0");
  EXPECT_EQ(found.runtime, "2.34.10.0");
  EXPECT_TRUE(found.collectives);
  EXPECT_EQ(found.kernel, "6.8.0-1021-aws");
  EXPECT_THAT(found.adapters, SizeIs(8));
  EXPECT_THAT(found.holders, IsEmpty());
}

TEST_F(Neuron, HasNothingToMendOnAMachineInGoodOrder) {
  fill();
  const auto findings = check_neuron(facts());
  EXPECT_THAT(findings, SizeIs(6));
  for (const auto& each : findings) {
    EXPECT_EQ(each.grade, Grade::kGood) << each.what << ": " << each.found;
    EXPECT_THAT(each.remedy, IsEmpty()) << each.what;
  }
  EXPECT_EQ(finding("Neuron").found, "16 Trainium, 32 physical cores");
  EXPECT_EQ(finding("Neuron runtime").found, "2.34.10.0, of SDK 2.32");
  EXPECT_EQ(finding("EFA").found, "8 adapters: rdmap10s27 to rdmap17s27");
}

TEST_F(Neuron, IsOnTheBusBeforeItHasADriver) {
  for (const int slot : {1, 2, 3}) pci(slot, "0x7364");
  const auto findings = check_neuron(facts());
  ASSERT_THAT(findings, SizeIs(1)) << "the rest would follow from it";
  EXPECT_EQ(findings[0].found, "3 Trainium2 that no driver has taken");
  EXPECT_THAT(findings[0].remedy, HasSubstr("aws-neuronx-dkms"));
  file("dev/neuron0");
  file("sys/module/neuron/version", "2.29.1\n");
  EXPECT_THAT(finding("Neuron").found, HasSubstr("1 Trainium2, 8 physical cores, of 3 on the bus"));
}

TEST_F(Neuron, OfAContainerIsKnownByItsDeviceFiles) {
  file("dev/neuron3");
  EXPECT_EQ(finding("Neuron").found, "1 device");
  EXPECT_THAT(finding("Neuron driver").found, HasSubstr("not known"));
  EXPECT_EQ(finding("Neuron runtime").grade, Grade::kNote);
  EXPECT_THAT(finding("Neuron runtime").remedy, HasSubstr("aws-neuronx-runtime-lib"));
  EXPECT_THAT(finding("EFA").found, HasSubstr("no adapter"));
}

TEST_F(Neuron, NamesTheCoresThatOthersHave) {
  fill();
  process(4711, {3, 1, 2, 8, 3}, {"HOME=/", "NEURON_RT_VISIBLE_CORES=2-7", "A=B"});
  process(99, {15}, {"A=B", "NEURON_RT_NUM_CORES=2"});
  process(500, {0}, {"A=B"});
  EXPECT_EQ(
      finding("Neuron cores").found,
      "process 99 (python3) has devices 15 open, NEURON_RT_NUM_CORES=2; process 500 (python3) "
      "has devices 0 open, all cores; process 4711 (python3) has devices 1-3, 8 open, "
      "NEURON_RT_VISIBLE_CORES=2-7");
  fs::remove(root_ / "proc/500/environ");
  EXPECT_THAT(finding("Neuron cores").found, HasSubstr("devices 0 open, cores not known"));
  EXPECT_EQ(finding("Neuron cores").grade, Grade::kNote);
}

TEST_F(Neuron, TheListOfCoresBeatsTheirNumber) {
  fill();
  process(5, {0}, {"NEURON_RT_NUM_CORES=2", "NEURON_RT_VISIBLE_CORES=4,5"});
  ASSERT_THAT(facts().holders, SizeIs(1));
  EXPECT_EQ(facts().holders[0].claim, "NEURON_RT_VISIBLE_CORES=4,5");
}

/// A version of the driver and the runtime, and what is said of the pair.
TEST_F(Neuron, DriverAndRuntimeGoTogether) {
  fill();
  fs::remove(root_ / "opt/aws/neuron/lib/libnrt.so.2.34.10.0");
  const auto said = [&](const std::string& driver, const std::string& runtime) {
    file("sys/module/neuron/version", driver + "\n");
    const auto library = "opt/aws/neuron/lib/libnrt.so." + runtime;
    file(library);
    const auto found = finding("Neuron driver");
    fs::remove(root_ / library);
    return (found.grade == Grade::kGood ? "" : "note: ") + found.found;
  };
  EXPECT_EQ(said("2.28.0", "2.32.31.0"), "2.28.0");
  EXPECT_EQ(said("2.29.0", "2.33.10.0"), "2.29.0");
  EXPECT_THAT(said("2.29.0", "2.32.31.0"),
              AllOf(HasSubstr("note: "), HasSubstr("needs runtime 2.33"), HasSubstr("2.32.31.0")));
  EXPECT_THAT(said("2.100.0", "2.32.31.0"), HasSubstr("needs runtime 2.33"));
  EXPECT_THAT(said("2.26.9", "2.32.31.0"), HasSubstr("is refused by runtime 2.32.31.0"));
  EXPECT_EQ(said("2.27.0", "2.32.31.0"), "2.27.0");
  EXPECT_EQ(said("2.26.9", "2.31.24.0"), "2.26.9");
  EXPECT_EQ(said("2.31.0", "3.0.0.0"), "2.31.0");
}

TEST_F(Neuron, TakesTheNewestRuntimeAndNamesItsSdk) {
  fill();
  file("opt/aws/neuron/lib/libnrt.so.2.9.1.0");
  EXPECT_EQ(facts().runtime, "2.34.10.0") << "by number, not by letter";
  file("opt/aws/neuron/lib/libnrt.so.2.99.0.0");
  EXPECT_EQ(finding("Neuron runtime").found, "2.99.0.0") << "of no SDK that is known";
  fs::remove(root_ / "opt/aws/neuron/lib/libnccom.so.2.30.1");
  EXPECT_THAT(finding("Neuron runtime").found, HasSubstr("without libnccom.so"));
}

TEST_F(Neuron, WantsAllAdaptersAndANewKernel) {
  fill();
  adapter("mlx5_0", "0x15b3");
  EXPECT_THAT(facts().adapters, SizeIs(8)) << "of another vendor";
  fs::remove_all(root_ / "sys/class/infiniband/rdmap10s27");
  EXPECT_THAT(finding("EFA").found, HasSubstr("7 adapters"));
  EXPECT_THAT(finding("EFA").found, HasSubstr("of 8 that it may have"));
  fs::remove_all(root_ / "sys/class/infiniband");
  EXPECT_THAT(finding("EFA").found, HasSubstr("by TCP only"));
  for (const auto& [release, grade] : std::vector<std::pair<std::string, Grade>>{
           {"5.10.0-1-aws", Grade::kNote}, {"5.15.0", Grade::kGood}, {"6.1.9", Grade::kGood}}) {
    file("proc/sys/kernel/osrelease", release + "\n");
    EXPECT_EQ(finding("Linux").grade, grade) << release;
  }
}

}  // namespace neuron_files_test
}  // namespace smp::base
