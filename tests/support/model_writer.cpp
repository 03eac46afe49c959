// support/model_writer.cpp: keeps a stack of running calls.
#include "support/model_writer.h"

#include <utility>

namespace smp::partitioning {

int ModelWriter::module(int parent, const std::string& name, std::int64_t elements) {
  ModuleTree& tree = model_.tree;
  const std::string& above = tree.nodes[parent].path;
  const std::string path = above.empty() ? name : above + "." + name;
  const int node = tree.add(path, parent);
  if (elements > 0) {
    tree.nodes[node].parameters.push_back({"weight", static_cast<int>(tree.parameters.size())});
    tree.parameters.push_back({path + ".weight", "float32[" + std::to_string(elements) + "]",
                               elements, elements * kFloatBytes, elements * kFloatBytes});
  }
  return node;
}

int ModelWriter::list(int parent, const std::string& name) {
  const int node = module(parent, name);
  model_.tree.nodes[node].stays_because = "it is a list and never called";
  return node;
}

void ModelWriter::tie(int module, int owner) {
  auto& nodes = model_.tree.nodes;
  nodes[module].parameters.push_back(nodes[owner].parameters.front());
}

void ModelWriter::begin(int module, std::int64_t inputs) {
  simulate::TracedCall call;
  call.module = module;
  call.caller = running_.back().call;
  call.before.seconds = std::exchange(running_.back().seconds, 0);
  call.input_bytes = inputs;
  call.sequential = model_.tree.nodes[module].sequential;
  running_.push_back({static_cast<int>(model_.trace.calls.size()), 0});
  model_.trace.calls.push_back(call);
}

void ModelWriter::end(std::int64_t outputs, std::int64_t activations) {
  simulate::TracedCall& call = model_.trace.calls[running_.back().call];
  call.after.seconds = running_.back().seconds;
  call.output_bytes = outputs;
  call.after.activation_bytes = activations;
  running_.pop_back();
}

void ModelWriter::compute(double operations, std::int64_t bytes) {
  running_.back().seconds +=
      operations / kOperationsPerSecond + static_cast<double>(bytes) / kMemoryBytesPerSecond;
}

void ModelWriter::call(const Layer& layer) {
  begin(layer.module, layer.inputs * kFloatBytes);
  compute(layer.operations, (layer.inputs + layer.outputs) * kFloatBytes);
  end(layer.outputs * kFloatBytes, layer.kept * kFloatBytes);
}

SyntheticModel ModelWriter::take() && {
  model_.trace.body_after.seconds = running_.back().seconds;
  return std::move(model_);
}

Layer linear(ModelWriter& write, int parent, const std::string& name, std::int64_t tokens,
             std::int64_t in, std::int64_t out) {
  const int module = write.module(parent, name, in * out + out);
  return {module, 2.0 * static_cast<double>(tokens * in * out), tokens * in, tokens * out,
          tokens * in};
}

Layer norm(ModelWriter& write, int parent, const std::string& name, std::int64_t tokens,
           std::int64_t width) {
  const std::int64_t size = tokens * width;
  return {write.module(parent, name, 2 * width), 0, size, size, size};
}

Layer pointwise(ModelWriter& write, int parent, const std::string& name, std::int64_t size) {
  return {write.module(parent, name), 0, size, size, size};
}

}  // namespace smp::partitioning
