// hf/publisher.cpp: see the header.
#include "hf/publisher.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "checkpoint/file_metadata.h"

namespace smp::hf {

Publisher::Publisher(const std::vector<OwnTensor>& own, const std::string& folder,
                     const NameMap& names, const SaveOptions& options)
    : all_(joined_tensors(own, names)), uses_(own.size()), parts_(all_.size()) {
  // Values of 8 bits mean nothing without scales.
  const bool is_number = !options.dtype || (c10::isFloatingType(*options.dtype) &&
                                            c10::elementSize(*options.dtype) > 1);
  SMP_REQUIRE(is_number, "hf::save: dtype ", options.dtype.value_or(at::kByte),
              " is none of Float, Double, Half and BFloat16");
  SMP_REQUIRE(options.shard_bytes > 0, "hf::save: shard_bytes is 0");
  if (options.config) {
    SMP_REQUIRE(options.config->family() == names.family(),
                "hf::save: the NameMap is of another family than the config");
    require_published(all_, *options.config);
  }
  std::vector<checkpoints::TensorInfo> infos;
  for (std::size_t k = 0; k < all_.size(); ++k) {
    auto& info = all_[k].info;
    if (options.dtype && c10::isFloatingType(info.dtype)) info.dtype = *options.dtype;
    infos.push_back(info);
    for (std::size_t i = 0; i < all_[k].parts.size(); ++i) {
      uses_[all_[k].parts[i]].push_back({k, i});
    }
  }
  if (options.config) config_ = config_text(*options.config, all_);
  folder_.emplace(folder, infos, options.shard_bytes,
                  checkpoints::with_format(options.metadata, "hf::save"));
}

void Publisher::write(std::size_t number, const at::Tensor& values) {
  for (const auto& [joined, part] : uses_.at(number)) {
    const auto count = all_[joined].parts.size();
    if (count == 1) {
      write_whole(joined, values);
      continue;
    }
    auto& waiting = parts_[joined];
    waiting.resize(count);
    waiting[part] = values.detach().to(at::kCPU).clone();
    const bool complete = std::all_of(waiting.begin(), waiting.end(),
                                      [](const at::Tensor& one) { return one.defined(); });
    if (complete) write_whole(joined, at::cat(std::exchange(waiting, {})));
  }
}

void Publisher::write_whole(std::size_t joined, at::Tensor values) {
  const auto& [info, parts, turned] = all_[joined];
  if (turned) values = values.t();
  folder_->write(joined, converted(values, info.dtype, info.name, losses_));
}

SaveReport Publisher::commit() {
  folder_->commit(config_);
  SaveReport report;
  report.files = folder_->files();
  if (!config_.empty()) report.files.emplace_back("config.json");
  for (const auto& one : all_) report.bytes += one.info.bytes();
  report.rounded = losses_.rounded;
  report.largest_change = losses_.largest_change;
  return report;
}

}  // namespace smp::hf
