// tp/group/layout.cpp: see the header.
#include "tp/group/layout.h"

#include "base/check.h"
#include "tp/group/tensor_parallel.h"

namespace smp::tp {

Layout layout_named(const std::string& name, const char* layer) {
  SMP_REQUIRE(name == "speed" || name == "memory", layer, ": optimize is \"", name,
              "\"; expected \"speed\" or \"memory\"");
  return name == "speed" ? Layout::kSpeed : Layout::kMemory;
}

Layout layout_of(const std::string& name, const char* layer) {
  const auto& own = TensorParallel::current();
  const auto wanted = name.empty() ? own.layout() : layout_named(name, layer);
  return own.size() == 1 ? Layout::kSpeed : wanted;
}

}  // namespace smp::tp
