// checkpoint/names.cpp: candidates come from one name that does not fit; all others decide.
#include "checkpoint/names.h"

#include <algorithm>
#include <functional>
#include <unordered_map>
#include <unordered_set>

#include "base/check.h"

namespace smp::checkpoints {
namespace {

constexpr const char* kCompiled = "_orig_mod";  // torch.compile's

class Names {
 public:
  Names(const std::vector<NamedTensor>& tensors, const std::vector<TensorInfo>& offered)
      : tensors_(tensors.size()) {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      for (const auto& name : tensors[i].names) known_.emplace(name, i);
    }
    for (const auto& info : offered) offered_.push_back(info.name);
  }

  std::string hint() const {
    const auto* const odd = first_unknown();
    if (odd == nullptr) return {};
    if (fits([](const std::string& name) { return without_part(name, kCompiled); })) {
      return remedy("without the part", "without_part", kCompiled);
    }
    for (auto dot = odd->find('.'); dot != std::string::npos; dot = odd->find('.', dot + 1)) {
      const auto prefix = odd->substr(0, dot + 1);
      if (fits([&](const std::string& name) { return without_prefix(name, prefix); })) {
        return remedy("without the prefix", "without_prefix", prefix);
      }
    }
    for (const auto& [name, tensor] : known_) {
      if (!name.ends_with("." + *odd)) continue;
      const auto prefix = name.substr(0, name.size() - odd->size());
      if (fits([&](const std::string& given) { return prefix + given; })) {
        return remedy("with the prefix", "with_prefix", prefix);
      }
    }
    return {};
  }

 private:
  static std::string remedy(const char* how, const char* function, const std::string& what) {
    return base::concat("\nAll names fit ", how, " \"", what, "\": load smp::", function,
                        "(dict, \"", what, "\"); of a file, dict is smp::load_safetensors(path)");
  }

  const std::string* first_unknown() const {
    for (const auto& name : offered_) {
      if (known_.count(name) == 0) return &name;
    }
    return nullptr;
  }

  /// True if the changed names are those of the model, each once, and none of its tensors is left.
  bool fits(const std::function<std::string(const std::string&)>& change) const {
    std::unordered_set<std::string> changed;
    std::vector<bool> has(tensors_);
    for (const auto& name : offered_) {
      auto now = change(name);
      const auto found = known_.find(now);
      if (found == known_.end() || !changed.insert(std::move(now)).second) return false;
      has[found->second] = true;
    }
    return std::find(has.begin(), has.end(), false) == has.end();
  }

  std::size_t tensors_;
  std::unordered_map<std::string, std::size_t> known_;  // tensor by name
  std::vector<std::string> offered_;
};

}  // namespace

std::string without_prefix(const std::string& name, const std::string& prefix) {
  return name.starts_with(prefix) ? name.substr(prefix.size()) : name;
}

std::string without_part(const std::string& name, const std::string& part) {
  std::string left;
  for (std::size_t begin = 0; begin <= name.size();) {
    const auto end = std::min(name.find('.', begin), name.size());
    if (name.compare(begin, end - begin, part) != 0) {
      if (!left.empty()) left += '.';
      left += name.substr(begin, end - begin);
    }
    begin = end + 1;
  }
  return left;
}

std::string name_hint(const std::vector<NamedTensor>& tensors,
                      const std::vector<TensorInfo>& offered) {
  return Names(tensors, offered).hint();
}

}  // namespace smp::checkpoints
