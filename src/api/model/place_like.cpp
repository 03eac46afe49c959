// api/model/place_like.cpp: see the header.
#include "smp/program/place_like.h"

#include <string>
#include <unordered_set>

#include "api/model/describe_model.h"
#include "base/check.h"

namespace smp {

void place_like(DistributedModelBase& model, const DistributedModelBase& other) {
  SMP_REQUIRE(other.partitioned(),
              "smp::place_like: the other model is not placed, so nobody knows where its modules "
              "will be; call place_like() in its on_placed(), or its place() first");
  std::unordered_set<std::string> own;
  for (const auto& node : describe_model(model.base_module()).tree.nodes) own.insert(node.path);
  for (const auto& row : other.plan().rows()) {
    SMP_REQUIRE(own.count(row.path) > 0, "smp::place_like: the other model has a module '",
                row.path,
                "', and this one has none of that path; models that are placed alike are built "
                "alike");
  }
  for (const auto& row : other.plan().rows()) model.set_partition(row.path, row.pp_rank);
}

}  // namespace smp
