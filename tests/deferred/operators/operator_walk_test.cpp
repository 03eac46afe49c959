// Every operator of LibTorch's dispatcher, called as a constructor or a forward might: under
// smp::delay_param_initialization it gives what it gives without, and on shapes alone the same
// shapes; or it is refused with an error of this library. None ends its process.
//
//   SMP_WALK_ENOUGH=40 SMP_WALK_ATTEMPTS=400 ...   more arguments for each operator
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <set>
#include <sstream>
#include <string>

#include "base/files.h"
#include "deferred/operators/walk.h"
#include "deferred/recordable.h"
#include "support/source_file.h"

namespace smp::deferred {
namespace operator_walk_test {

int number(const char* name, int otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : std::stoi(value);
}

const std::vector<Finding>& findings() {
  static const auto all =
      walk(all_operators(), {number("SMP_WALK_ATTEMPTS", 80), number("SMP_WALK_ENOUGH", 4)});
  return all;
}

/// Without "aten::" and overload.
std::string short_name(const std::string& name) {
  const auto begin = name.find("::") + 2;
  return name.substr(begin, name.find('.') - begin);
}

/// What two ordinary runs differ in as well: pointers that are packed into a tensor, and memory
/// behind the end of a storage, which these read without a look.
bool is_undefined(const Finding& finding) {
  static const std::set<std::string> kNames{"fbgemm_pack_gemm_matrix_fp16", "set", "set_",
                                            "_reshape_alias", "_reshape_alias_copy"};
  return kNames.count(short_name(finding.name)) > 0;
}

/// Operators that LibTorch calls itself, with arguments that nobody checks.
bool is_internal(const Finding& finding) {
  const auto name = short_name(finding.name);
  return name[0] == '_' || name.find("backward") != std::string::npos;
}

TEST(OperatorWalk, UnderTheScopeAllAreEqualOrRefused) {
  int taken = 0, put_off = 0;
  for (const auto& finding : findings()) {
    taken += finding.accepted > 0 ? 1 : 0;
    put_off += finding.put_off ? 1 : 0;
    const bool known = is_undefined(finding) || is_internal(finding);
    if (!finding.failed.empty() && !known) ADD_FAILURE() << finding.name << ": " << finding.failed;
    EXPECT_EQ(finding.refused.find("smp internal error"), std::string::npos)
        << finding.name << ": " << finding.refused;
  }
  std::cout << taken << " of " << findings().size() << " operators took arguments, " << put_off
            << " of them are put off\n";
  EXPECT_GE(taken, 2300);
  EXPECT_GE(put_off, 600);
}

/// Whose results have as many elements as values decide, or another layout: see MetaScope.
bool depends_on_values(const Finding& finding) {
  static const std::set<std::string> kNames{"argwhere",
                                            "bincount",
                                            "choose_qparams_optimized",
                                            "embedding_sparse_backward",
                                            "index",
                                            "linalg_lstsq",
                                            "masked_select",
                                            "nonzero",
                                            "nonzero_numpy",
                                            "one_hot",
                                            "repeat_interleave",
                                            "resize_as_",
                                            "set_data",
                                            "sparse_coo_tensor",
                                            "sparse_bsc_tensor",
                                            "sparse_bsr_tensor",
                                            "sparse_csc_tensor",
                                            "sparse_csr_tensor",
                                            "tensor_split",
                                            "to_sparse",
                                            "to_sparse_bsc",
                                            "to_sparse_bsr",
                                            "to_sparse_csc",
                                            "to_sparse_csr",
                                            "unique_consecutive",
                                            "unique_dim",
                                            "unique_dim_consecutive",
                                            "where"};
  return kNames.count(short_name(finding.name)) > 0;
}

TEST(OperatorWalk, OnShapesAloneAllHaveTheirShapesOrAreRefused) {
  for (const auto& finding : findings()) {
    if (finding.failed_on_shapes.empty() || depends_on_values(finding)) continue;
    const bool out = finding.name.find("out") != std::string::npos;
    if (is_undefined(finding) || is_internal(finding) || out) continue;
    ADD_FAILURE() << finding.name << ": " << finding.failed_on_shapes;
  }
}

constexpr const char* kBegin =
    "<!-- operators; SMP_REWRITE_DOCS=1 ./smp test --all -R operator_walk writes this list -->\n\n";
constexpr const char* kEnd = "\n<!-- end of operators -->\n";

std::string list() {
  std::ostringstream text;
  std::string line;
  for (const auto name : recordable_names()) {
    if (line.size() + name.size() > 120) {
      text << line << ",\n";
      line.clear();
    }
    line += (line.empty() ? "`" : ", `") + std::string(name) + "`";
  }
  text << line << "\n";
  return text.str();
}

TEST(OperatorWalk, TheDocumentListsWhatIsPutOff) {
  const std::string path = support::source_file("docs/delayed_initialisation.md");
  const std::string page = base::read_file(path);
  const auto begin = page.find(kBegin), end = page.find(kEnd);
  ASSERT_TRUE(begin != std::string::npos && end != std::string::npos && begin < end)
      << path << " lacks the lines around its list:\n"
      << kBegin << kEnd;
  const std::string right = page.substr(0, begin) + kBegin + list() + page.substr(end);
  if (std::getenv("SMP_REWRITE_DOCS") != nullptr) return base::write_file(path, right);
  EXPECT_EQ(page, right) << "SMP_REWRITE_DOCS=1 in the environment of this test rewrites " << path;
}

}  // namespace operator_walk_test
}  // namespace smp::deferred
