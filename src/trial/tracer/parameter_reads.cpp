// trial/tracer/parameter_reads.cpp: by identity of the tensor.
#include "trial/tracer/parameter_reads.h"

#include <torch/nn/module.h>

#include "module/path_below.h"

namespace smp::partitioning {
namespace {

/// Returns, for each module, the routed module whose execution it is part of: itself, or the next
/// one above it.
std::vector<int> routed_ancestors(const TracedModel& model) {
  const auto& nodes = model.tree->nodes;
  std::vector<int> ancestors(nodes.size(), 0);
  for (std::size_t i = 1; i < nodes.size(); ++i) {
    const bool routed = (*model.routed)[i] != nullptr;
    ancestors[i] = routed ? static_cast<int>(i) : ancestors[nodes[i].parent];
  }
  return ancestors;
}

/// Returns a key that all views of one memory share: the storage, if the tensor has one.
const void* memory_of(const at::Tensor& tensor) {
  if (!tensor.has_storage()) return tensor.unsafeGetTensorImpl();
  return tensor.storage().unsafeGetStorageImpl();
}

}  // namespace

ParameterReads::ParameterReads(const std::vector<TracedModel>& models)
    : uses_(models.size()), read_(models.size()) {
  for (std::size_t m = 0; m < models.size(); ++m) {
    const auto& nodes = models[m].tree->nodes;
    const auto ancestors = routed_ancestors(models[m]);
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      const auto tensors = (*models[m].modules)[i]->named_parameters(/*recurse=*/false);
      for (const auto& own : nodes[i].parameters) {
        auto& parameter = parameters_[tensors[own.name].unsafeGetTensorImpl()];
        parameter.model = static_cast<int>(m);
        parameter.number = own.parameter;
        parameter.holders.insert(ancestors[i]);
      }
      const auto& path = nodes[i].path;
      for (const auto& item : (*models[m].modules)[i]->named_buffers(/*recurse=*/false)) {
        if (!item.value().defined()) continue;
        add_buffer(static_cast<int>(m), ancestors[i], path_below(path, item.key()), item.value());
      }
    }
  }
}

void ParameterReads::add_buffer(int model, int holder, const std::string& name,
                                const at::Tensor& tensor) {
  const auto [known, fresh] =
      buffer_numbers_.emplace(tensor.unsafeGetTensorImpl(), buffers_.size());
  if (fresh) {
    const auto bytes = static_cast<std::int64_t>(tensor.numel() * tensor.element_size());
    buffers_.push_back({model, holder, name, bytes, memory_of(tensor), {}});
  }
  buffers_[known->second].holders.insert(holder);
}

void ParameterReads::note_write(const at::Tensor& tensor) { written_.insert(memory_of(tensor)); }

void ParameterReads::note_handed(int model, int module, const at::Tensor& tensor) {
  const auto buffer = buffer_numbers_.find(tensor.unsafeGetTensorImpl());
  if (buffer != buffer_numbers_.end()) buffers_[buffer->second].handed.insert({model, module});
}

void ParameterReads::note_returned(int model, int module, const at::Tensor& tensor) {
  note_handed(model, module, tensor);
  const auto parameter = parameters_.find(tensor.unsafeGetTensorImpl());
  if (parameter != parameters_.end()) parameter->second.returned.insert({model, module});
}

void ParameterReads::note(int model, int module, const at::Tensor& tensor) {
  const auto buffer = buffer_numbers_.find(tensor.unsafeGetTensorImpl());
  if (buffer != buffer_numbers_.end()) {
    auto& own = buffers_[buffer->second];
    read_[static_cast<std::size_t>(own.model)] = true;
    if (own.handed.count({model, module}) == 0) {
      own.readers.insert(model == own.model ? module : 0);
    }
    return;
  }
  const auto found = parameters_.find(tensor.unsafeGetTensorImpl());
  if (found == parameters_.end()) return;
  const Parameter& parameter = found->second;
  read_[static_cast<std::size_t>(parameter.model)] = true;
  const int reader = model == parameter.model ? module : 0;
  if (parameter.returned.count({model, module}) != 0) return;
  if (parameter.holders.count(reader) == 0)
    uses_[parameter.model].insert({reader, parameter.number});
}

std::vector<simulate::WeightUse> ParameterReads::foreign_uses(int model) const {
  std::vector<simulate::WeightUse> uses;
  for (const auto& [module, parameter] : uses_[model]) uses.push_back({module, parameter});
  return uses;
}

/// A buffer that is written counts as one with all views of its memory that modules hold.
std::vector<simulate::BufferUse> ParameterReads::buffer_uses(int model) const {
  std::vector<simulate::BufferUse> uses;
  std::unordered_map<const void*, const Buffer*> first_views;
  for (const auto& buffer : buffers_) {
    if (buffer.model != model) continue;
    const bool written = written_.count(buffer.memory) != 0;
    const auto* first = first_views.emplace(buffer.memory, &buffer).first->second;
    std::set<int> users;
    if (written) users = buffer.holders;
    if (written || buffer.bytes > kSmallBuffer) {
      for (const int reader : buffer.readers) {
        if (buffer.holders.count(reader) == 0) users.insert(reader);
      }
    }
    const auto* const holder = written ? first : &buffer;
    for (const int user : users) {
      if (user != holder->first_holder) {
        uses.push_back({user, holder->first_holder, buffer.name});
      }
    }
  }
  return uses;
}

}  // namespace smp::partitioning
