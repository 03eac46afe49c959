// tp/group/layout.cpp: see the header.
#include "tp/group/layout.h"

#include "base/check.h"
#include "tp/group/tensor_parallel.h"

namespace smp::tp {

Layout layout_named(const std::string& name, const char* layer) {
  if (name == "speed") return Layout::kSpeed;
  if (name == "memory") return Layout::kMemory;
  SMP_REQUIRE(name == "sequence", layer, ": optimize is \"", name,
              "\"; expected \"speed\", \"memory\" or \"sequence\"");
  return Layout::kSequence;
}

Layout layout_of(const std::string& name, const char* layer) {
  const auto& own = TensorParallel::current();
  const auto wanted = name.empty() ? own.layout() : layout_named(name, layer);
  if (own.size() == 1) return Layout::kSpeed;
  return wanted == Layout::kSequence && !own.same_batch() ? Layout::kSpeed : wanted;
}

}  // namespace smp::tp
