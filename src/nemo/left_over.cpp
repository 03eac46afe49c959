// nemo/left_over.cpp: what no section has asked for: switches of other libraries, and what is lost.
#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include "nemo/sections.h"

namespace smp::nemo {
namespace {

/// Keys that begin so change nothing here, and why.
struct Needless {
  std::string_view begin;
  const char* why;
};

constexpr const char* kKernels = "LibTorch chooses its kernels";
constexpr const char* kMessages = "messages need no order and overlap by themselves";
constexpr const char* kPaths = "runs go to the folder of smp.runs, with curves for TensorBoard";
constexpr const char* kLoader = "the loader of this library has threads and order of its own";

constexpr std::array kNeedless = {
    Needless{"model.masked_softmax_fusion", kKernels},
    Needless{"model.bias_activation_fusion", kKernels},
    Needless{"model.bias_dropout_add_fusion", kKernels},
    Needless{"model.bias_gelu_fusion", kKernels},
    Needless{"model.gradient_accumulation_fusion", kKernels},
    Needless{"model.get_attention_mask_from_fusion", kKernels},
    Needless{"model.apply_rope_fusion", kKernels},
    Needless{"model.persist_layer_norm", kKernels},
    Needless{"model.transformer_engine", kKernels},
    Needless{"model.use_flash_attention", kKernels},
    Needless{"model.grad_div_ar_fusion", kMessages},
    Needless{"model.grad_allreduce_chunk_size_mb", kMessages},
    Needless{"model.overlap_p2p_comm", kMessages},
    Needless{"model.batch_p2p_comm", kMessages},
    Needless{"model.sync_batch_comm", kMessages},
    Needless{"model.gradient_as_bucket_view", kMessages},
    Needless{"model.optim.bucket_cap_mb", kMessages},
    Needless{"model.optim.overlap_", kMessages},
    Needless{"model.optim.contiguous_", kMessages},
    Needless{"model.mcore_gpt", "there is one implementation"},
    Needless{"model.pre_process", "the plan places embedding and head"},
    Needless{"model.post_process", "the plan places embedding and head"},
    Needless{"model.make_vocab_size_divisible_by", "sliced tables pad themselves"},
    Needless{"model.apply_query_key_layer_scaling", "scores of attention are summed in float32"},
    Needless{"model.use_cpu_initialization", "values are drawn alike wherever they are made"},
    Needless{"model.apex_transformer_log_level", "another library's"},
    Needless{"model.nsys_profile", "every run keeps a timeline of steps"},
    Needless{"model.data.num_workers", kLoader},
    Needless{"model.data.skip_warmup", kLoader},
    Needless{"model.data.index_mapping_dir", kLoader},
    Needless{"model.data.data_impl", kLoader},
    Needless{"model.data.dataloader_type", kLoader},
    Needless{"model.data.splits_string", "held-out text is files of its own (--held-out)"},
    Needless{"trainer.accelerator", "the setting device says where ranks compute"},
    Needless{"trainer.logger", kPaths},
    Needless{"trainer.enable_checkpointing", "the program saves (--checkpoint)"},
    Needless{"trainer.log_every_n_steps", "every step is logged"},
    Needless{"trainer.max_epochs", "a run has a number of steps"},
    Needless{"trainer.limit_", "held-out text is scored whole"},
    Needless{"trainer.benchmark", kKernels},
    Needless{"exp_manager.", kPaths},
    Needless{"name", "a run is named by its program and time"},
    Needless{"defaults", "for the program that joins configurations"},
    Needless{"hydra.", "for the program that joins configurations"},
};

const Needless* find_needless(std::string_view key) {
  const auto found = std::find_if(kNeedless.begin(), kNeedless.end(), [&](const Needless& one) {
    return key.starts_with(one.begin) &&
           (key.size() == one.begin.size() || one.begin.ends_with('.') ||
            one.begin.ends_with('_') || key[one.begin.size()] == '.');
  });
  return found == kNeedless.end() ? nullptr : found;
}

}  // namespace

void sort_left_over(const NemoKeys& keys, Translation& into) {
  for (const auto& value : keys.unknown()) {
    into.lost.push_back(value + ": known to the program of NeMo only; write the value there");
  }
  for (const auto& [key, text] : keys.left()) {
    if (const auto* needless = find_needless(key)) {
      into.needless.push_back(base::concat(text, ": ", needless->why));
    } else if (text.ends_with(" = false") || text.ends_with(" = \"\"") || text.ends_with(" = []")) {
      into.needless.push_back(text + ": switched off");
    } else {
      into.lost.push_back(text + ": has no counterpart here");
    }
  }
}

}  // namespace smp::nemo
