// tp/replacement/dropped_parameters.cpp: see the header.
#include "tp/replacement/dropped_parameters.h"

#include <c10/core/UndefinedTensorImpl.h>

#include <unordered_map>
#include <utility>

namespace smp::tp {
namespace {

struct Dropped {
  // The address of one that is gone may be that of another.
  c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> parameter;
  std::string name;
};

std::unordered_map<const void*, Dropped>& all() {
  static std::unordered_map<const void*, Dropped> dropped;
  return dropped;
}

}  // namespace

void note_dropped(const at::Tensor& parameter, std::string name) {
  std::erase_if(all(), [](const auto& item) { return item.second.parameter.expired(); });
  all().insert_or_assign(
      parameter.unsafeGetTensorImpl(),
      Dropped{decltype(Dropped::parameter)(parameter.getIntrusivePtr()), std::move(name)});
}

std::string name_of_dropped(const at::Tensor& parameter) {
  const auto found = all().find(parameter.unsafeGetTensorImpl());
  const bool known = found != all().end() && !found->second.parameter.expired();
  return known ? found->second.name : std::string();
}

std::vector<std::pair<at::Tensor, std::string>> held_dropped() {
  std::vector<std::pair<at::Tensor, std::string>> held;
  for (const auto& [address, dropped] : all()) {
    at::Tensor parameter(dropped.parameter.lock());
    if (parameter.defined()) held.emplace_back(std::move(parameter), dropped.name);
  }
  return held;
}

}  // namespace smp::tp
