// api/model/describe_model.cpp: one walk over the modules, in order of registration.
#include "api/model/describe_model.h"

#include <torch/nn/module.h>

#include <sstream>
#include <unordered_map>
#include <utility>

#include "api/model/common_buffers.h"
#include "base/check.h"
#include "base/text/excerpt.h"
#include "base/text/utf8.h"
#include "module/path_below.h"
#include "smp/nn/sequential.h"

namespace smp {
namespace {

/// The bytes of its storage that a tensor lies in, from the first to behind the last.
struct Range {
  std::int64_t first = 0, last = 0;

  bool holds(const Range& other) const { return first <= other.first && other.last <= last; }
  bool meets(const Range& other) const { return first < other.last && other.first < last; }
};

Range range_of(const at::Tensor& tensor) {
  const auto size = static_cast<std::int64_t>(tensor.element_size());
  const auto first = tensor.storage_offset() * size;
  if (tensor.numel() == 0) return {first, first};
  auto last = first + size;
  for (std::int64_t d = 0; d < tensor.dim(); ++d) {
    last += (tensor.size(d) - 1) * tensor.stride(d) * size;
  }
  return {first, last};
}

const void* memory_of(const at::Tensor& tensor) { return tensor.storage().unsafeGetStorageImpl(); }

/// Tells tensors with memory of their own from those that lie in the memory of others.
class MemoryRanges {
 public:
  /// True if the tensor is the first one in its memory, or in this part of it.
  bool is_new(const at::Tensor& tensor) {
    if (!tensor.has_storage() || tensor.numel() == 0) return true;
    const auto range = range_of(tensor);
    auto& taken = taken_[memory_of(tensor)];
    for (const auto& earlier : taken) {
      if (earlier.holds(range)) return false;
    }
    taken.push_back(range);
    return true;
  }

 private:
  std::unordered_map<const void*, std::vector<Range>> taken_;  // by storage
};

class Walk {
 public:
  ModelDescription description;

  void visit(torch::nn::Module& module, const std::string& path, int parent) {
    const auto [known, fresh] =
        nodes_.emplace(&module, static_cast<int>(description.tree.nodes.size()));
    if (!fresh) {
      description.tree.nodes[static_cast<std::size_t>(known->second)].aliases.push_back(path);
      return;
    }
    const int node = add_node(module, path, parent);
    for (const auto& child : module.named_children()) {
      visit(*child.value(), path_below(path, child.key()), node);
    }
  }

  /// Finds views of the parameters' memory, and buffers with memory of their own; call it once all
  /// parameters are known.
  void find_views_and_buffers() {
    for (std::size_t i = 0; i < description.modules.size(); ++i) {
      const auto& module = *description.modules[i];
      for (const auto& tensor : module.parameters(/*recurse=*/false)) note_view(i, tensor);
      for (const auto& tensor : module.buffers(/*recurse=*/false)) {
        note_view(i, tensor);
        count_buffer(i, tensor);
      }
    }
  }

 private:
  static void require_text(const std::string& name) {
    SMP_REQUIRE(base::is_utf8(name), "the name \"", base::excerpt(name),
                "\" of a module or parameter is no UTF-8 text, of which plans, files and messages "
                "consist; register it under another name");
  }

  int add_node(torch::nn::Module& module, const std::string& path, int parent) {
    require_text(path);
    const int node = description.tree.add(path, parent);
    auto* routed = dynamic_cast<RoutedBase*>(&module);
    description.modules.push_back(&module);
    description.routed.push_back(routed);
    auto& own = description.tree.nodes[static_cast<std::size_t>(node)];
    own.stays_because = why_it_stays(module, routed);
    if (routed != nullptr) own.state_use = routed->smp_state_use();
    own.sequential = dynamic_cast<const nn::SequentialImpl*>(&module) != nullptr;
    for (const auto& parameter : module.named_parameters(/*recurse=*/false)) {
      require_text(path_below(path, parameter.key()));
      const int number = number_of(parameter.value(), path_below(path, parameter.key()));
      description.tree.nodes[static_cast<std::size_t>(node)].parameters.push_back(
          {parameter.key(), number});
    }
    return node;
  }

  /// Notes the parameters that are changed where `tensor` is: of two that lie in the same memory
  /// the later one is a view of the other. Parts of one memory that do not meet are not.
  void note_view(std::size_t node, const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.has_storage()) return;
    const auto found = memory_.find(memory_of(tensor));
    if (found == memory_.end()) return;
    const auto own = parameters_.find(tensor.unsafeGetTensorImpl());
    const auto range = range_of(tensor);
    for (const auto& [parameter, taken] : found->second) {
      if (own != parameters_.end() && own->second <= parameter) break;
      if (taken.meets(range)) description.tree.nodes[node].viewed.push_back(parameter);
    }
  }

  void count_buffer(std::size_t node, const at::Tensor& buffer) {
    if (!buffer.defined() || !buffer.has_storage() || !ranges_.is_new(buffer)) return;
    const auto bytes = static_cast<std::int64_t>(buffer.numel() * buffer.element_size());
    const bool common = stays_everywhere(*description.modules[node], buffer);
    (common ? description.tree.common_bytes : description.tree.nodes[node].buffer_bytes) += bytes;
  }

  static std::string why_it_stays(const torch::nn::Module& module, const RoutedBase* routed) {
    if (routed != nullptr) return routed->smp_cannot_cross();
    return "its calls are not routed: define " + module.name() +
           " with SMP_MODULE and create it through its holder or smp::make_module";
  }

  int number_of(const at::Tensor& tensor, const std::string& name) {
    auto& all = description.tree.parameters;
    const auto [known, fresh] =
        parameters_.emplace(tensor.unsafeGetTensorImpl(), static_cast<int>(all.size()));
    if (fresh) {
      if (tensor.has_storage()) {
        memory_[memory_of(tensor)].emplace_back(known->second, range_of(tensor));
      }
      std::ostringstream shape;
      shape << c10::toString(tensor.scalar_type()) << tensor.sizes();
      const auto bytes = static_cast<std::int64_t>(tensor.numel() * tensor.element_size());
      const bool own = ranges_.is_new(tensor);
      all.push_back({name, shape.str(), own ? tensor.numel() : 0, own ? bytes : 0,
                     tensor.requires_grad() ? bytes : 0});
    }
    return known->second;
  }

  std::unordered_map<const torch::nn::Module*, int> nodes_;
  std::unordered_map<const void*, int> parameters_;
  MemoryRanges ranges_;
  // By storage: the parameters in it, in order of registration.
  std::unordered_map<const void*, std::vector<std::pair<int, Range>>> memory_;
};

}  // namespace

ModelDescription describe_model(torch::nn::Module& model) {
  Walk walk;
  walk.visit(model, "", -1);
  walk.find_views_and_buffers();
  return std::move(walk.description);
}

}  // namespace smp
