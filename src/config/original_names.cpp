// config/original_names.cpp: see the header.
#include "config/original_names.h"

#include "base/check.h"
#include "config/original_sections.h"

namespace smp::base {
namespace {

std::vector<OriginalKey> make_original_keys() {
  return {
      {"partitions", "", "both names"},
      {"pipeline_parallel_degree", "1", "what remains of the ranks, if it is not given"},
      {"tensor_parallel_degree", "1", ""},
      {"placement_strategy", R"("cluster")", "permutations in every source"},
      {"microbatches", "1", "a batch that does not divide evenly is no error"},
      {"pipeline", R"("interleaved")", "others as well"},
      {"active_microbatches", "", "partitions + 2 there"},
      {"deterministic_server", "false", ""},
      {"static_mode", "false", "control flow may change"},
      {"fast_mode", "false", "a part of static_mode, and on with it"},
      {"auto_partition", "true", "modules placed by hand stay where they are in either case"},
      {"default_partition", "0", "needed with auto_partition = false"},
      {"memory_weight", "0.8", "does not depend on optimize"},
      {"optimize", R"("memory")", "of layers only"},
      {"skip_tracing", "false", ""},
      {"delayed_parameter_initialization", "false",
       "true here: scopes work. Given as false, scopes have no effect"},
      {"load_partition", "false", ""},
      {"partition_file", "",
       "a plan.json, which brings along how its run was trained, or an object of paths and stages"},
      {"contiguous", "true", "of TensorFlow"},
      {"ddp", "false", "on here: ranks beyond the stages train replicas"},
      {"ddp_port", "", ""},
      {"ddp_dist_backend", R"("auto")", ""},
      {"horovod", "false", "of TensorFlow"},
      {"overlapping_allreduce", "true", ""},
      {"prescaled_batch", "false", ""},
      {"_prescaled_batch", "false", ""},
      {"fp16_params", "false", ""},
      {"checkpoint_attentions", "false", ""},
      {"_match_weights", "false", "always so"},
      {"_fp32_grad_accumulation", "false", "on here"},
      {"shard_optimizer_state", "false", "whole state dicts too"},
      {"offload_activations", "false", ""},
      {"activation_loading_horizon", "4", ""},
      {"sharded_data_parallel_degree", "1", ""},
      {"sdp_reduce_bucket_size", "500000000", ""},
      {"sdp_param_persistence_threshold", "1000000", ""},
      {"sdp_max_live_parameters", "1000000000", ""},
      {"sdp_hierarchical_allgather", "true", ""},
      {"sdp_gradient_clipping", "1.0", ""},
      {"fp16", "false", ""},
      {"bf16", "false", ""},
  };
}

}  // namespace

const std::vector<OriginalSection>& original_names() {
  static const std::vector<OriginalSection> sections = {
      original::steps(),       original::models(),      original::optimizers(),
      original::placement(),   original::layers(),      original::hugging_face(),
      original::activations(), original::files(),       original::ranks(),
      original::messages(),    original::environment(), original::tensorflow()};
  return sections;
}

const std::vector<OriginalKey>& original_keys() {
  static const std::vector<OriginalKey> keys = make_original_keys();
  return keys;
}

std::string instead_of_argument(std::string_view argument) {
  for (const auto& section : original_names()) {
    for (const auto& name : section.names) {
      const auto begin = name.name.find('(');
      if (begin == std::string_view::npos) continue;
      if (name.name.substr(begin) != concat("(", argument, ")")) continue;
      return concat("; it is an argument of ", name.name.substr(0, begin),
                    " in the original: ", name.here.empty() ? "not here" : name.here,
                    name.note.empty() ? "" : concat(" (", name.note, ")"));
    }
  }
  return {};
}

}  // namespace smp::base
