// api/files/saved_files.cpp: see the header.
#include "smp/program/saved_files.h"

#include <ATen/core/ScalarType.h>
#include <ATen/ops/empty.h>
#include <c10/util/Type.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <vector>

#include "api/rank/rank.h"
#include "base/check.h"
#include "base/files.h"
#include "smp/checkpoint.h"

namespace smp {
namespace {

// What only these files have: texts beside the tensors, and names of a value's parts.
constexpr const char* kLayout = "smp.layout";
constexpr const char* kType = "smp.type";
constexpr const char* kNothing = "smp.nothing";
constexpr const char* kBytes = "bytes";
constexpr const char* kCount = "smp.tensors";

std::string tensor_name(std::size_t number) { return base::concat("tensor.", number); }

/// The degrees that partial files are of: "pp 2, tp 1".
std::string layout_of(const Topology& topology, const FileOptions& options) {
  const auto degrees = base::concat("pp ", topology.pp_size(), ", tp ", topology.tp_size());
  return options.per_replica ? base::concat(degrees, ", rdp ", topology.rdp_size()) : degrees;
}

std::string name_of(const std::string& path, const Topology& topology, const FileOptions& options) {
  if (!options.partial) return path;
  const auto part = base::concat(path, '_', topology.pp_rank(), '_', topology.tp_rank());
  return options.per_replica ? base::concat(part, '_', topology.rdp_rank()) : part;
}

/// Files of `path`, for a message: " (there are model.pt_0_0, model.pt_1_0)".
std::string files_there(const std::string& path) {
  const std::filesystem::path whole(path);
  const auto folder = whole.has_parent_path() ? whole.parent_path() : std::filesystem::path(".");
  std::vector<std::string> names;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(folder, none)) {
    auto name = entry.path().filename().string();
    if (name.starts_with(whole.filename().string())) names.push_back(std::move(name));
  }
  std::sort(names.begin(), names.end());
  constexpr std::size_t kMost = 8;
  std::string text;
  for (std::size_t i = 0; i < names.size() && i < kMost; ++i) {
    text += (i == 0 ? " (there are " : ", ") + names[i];
  }
  if (names.empty()) return " (there is none of that name)";
  return text + (names.size() > kMost ? ", ...)" : ")");
}

void check_layout(const StateDict& dict, const std::string& name, const Topology& topology,
                  const FileOptions& options) {
  const auto written = dict.metadata.find(kLayout);
  const auto own = layout_of(topology, options);
  SMP_REQUIRE(written != dict.metadata.end(), name,
              ": no partial file of smp::save(); read a file for all with partial = false");
  SMP_REQUIRE(written->second == own, name, ": a part for ", written->second, ", but this job has ",
              own,
              "; a whole file fits any layout (smp::save_safetensors(model, path), "
              "smp::load_safetensors(model, path))");
}

}  // namespace

void detail::save(const StateDict& dict, const std::string& path, const FileOptions& options) {
  const auto& topology = Rank::current().topology();
  if (!options.partial) return save_safetensors(dict, path);
  if (!options.per_replica && topology.rdp_rank() > 0) return;
  auto part = dict;
  part.metadata[kLayout] = layout_of(topology, options);
  if (part.empty()) part.insert(kNothing, at::empty({0}));  // so that it is there to be read
  save_safetensors(part, name_of(path, topology, options));
}

StateDict detail::load(const std::string& path, const FileOptions& options) {
  const auto& topology = Rank::current().topology();
  const auto name = name_of(path, topology, options);
  SMP_REQUIRE(base::file_exists(name), "rank ", topology.rank(), ": there is no ", name,
              files_there(path));
  auto dict = load_safetensors(name);
  if (options.partial) {
    check_layout(dict, name, topology, options);
    dict.metadata.erase(kLayout);
    dict.erase(kNothing);
  }
  return dict;
}

StateDict detail::to_dict(Packet value, const std::type_info& type) {
  StateDict dict;
  auto bytes = at::empty({static_cast<std::int64_t>(value.bytes.size())}, at::kByte);
  if (!value.bytes.empty()) {
    std::memcpy(bytes.mutable_data_ptr(), value.bytes.data(), value.bytes.size());
  }
  dict.insert(kBytes, std::move(bytes));
  for (std::size_t i = 0; i < value.tensors.size(); ++i) {
    if (value.tensors[i].defined()) dict.insert(tensor_name(i), value.tensors[i].detach());
  }
  dict.metadata[kType] = c10::demangle(type.name());
  dict.metadata[kCount] = std::to_string(value.tensors.size());
  return dict;
}

Packet detail::from_dict(const StateDict& dict, const std::type_info& type,
                         const std::string& path) {
  const auto wanted = c10::demangle(type.name());
  const auto written = dict.metadata.find(kType);
  SMP_REQUIRE(written != dict.metadata.end() && dict.contains(kBytes), path,
              ": tensors by name, and no ", wanted, "; load it as a StateDict");
  SMP_REQUIRE(written->second == wanted, path, ": holds a ", written->second, ", and no ", wanted,
              "; name the type that was saved");
  Packet value;
  const auto bytes = dict.at(kBytes).contiguous();
  value.bytes.assign(static_cast<const char*>(bytes.const_data_ptr()), bytes.nbytes());
  const auto number = dict.metadata.find(kCount);
  std::size_t count = 0;
  const bool counted =
      number != dict.metadata.end() &&
      std::from_chars(number->second.data(), number->second.data() + number->second.size(), count)
              .ec == std::errc();
  SMP_REQUIRE(counted, path, ": damaged: it does not say how many tensors it has; save it again");
  for (std::size_t i = 0; i < count; ++i) {
    const auto name = tensor_name(i);
    value.tensors.push_back(dict.contains(name) ? dict.at(name) : at::Tensor());
  }
  return value;
}

}  // namespace smp
