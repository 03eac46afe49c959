// nemo/job_section.cpp: how many ranks there are, and what each does with which part of a batch.
#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "config/config_keys.h"
#include "nemo/sections.h"

namespace smp::nemo {
namespace {

using base::Json;

class JobSection {
 public:
  JobSection(NemoKeys& keys, Translation& into) : keys_(keys), into_(into) {}

  void translate() {
    axes();
    batch();
    precision();
    recomputation();
    if (const auto seed = keys_.find<std::uint64_t>({"model.seed", "seed"})) {
      into_.settings["seed"] = seed->value;
      into_.recipe["seed"] = seed->value;
    }
  }

 private:
  template <class... Parts>
  void lose(const Parts&... parts) {
    into_.lost.push_back(base::concat(parts...));
  }

  void axes() {
    tp_ = size({"model.tensor_model_parallel_size", "model_parallel.tensor_model_parallel_size"});
    pp_ =
        size({"model.pipeline_model_parallel_size", "model_parallel.pipeline_model_parallel_size"});
    into_.settings["pipeline_parallel_degree"] = pp_;
    into_.settings["tensor_parallel_degree"] = tp_;
    // Megatron's tensor ranks are given one batch.
    if (tp_ > 1) into_.settings["prescaled_batch"] = true;
    into_.recipe["pp"] = pp_;
    into_.recipe["tp"] = tp_;
    sequence();
    refuse_other_axes();
    count_ranks();
  }

  std::int64_t size(std::initializer_list<const char*> names) {
    const auto found = keys_.find_count(names, 1, base::kMostStages);
    return found ? found->value : 1;
  }

  void sequence() {
    const auto wanted =
        keys_.find<bool>({"model.sequence_parallel", "model_parallel.sequence_parallel"});
    if (!wanted || !wanted->value) return;
    if (tp_ > 1) {
      into_.settings["optimize"] = "sequence";
    } else {
      into_.needless.push_back(wanted->text() + ": there are no ranks to share a sequence");
    }
  }

  void refuse_other_axes() {
    const auto above_one = [this](std::initializer_list<const char*> names, const char* why) {
      const auto found = keys_.find<std::int64_t>(names);
      if (found && found->value > 1) lose(found->text(), ": ", why);
    };
    above_one({"model.context_parallel_size", "model_parallel.context_parallel_size"},
              "a sequence is shared by the ranks of tensor_parallel_degree only (optimize = "
              "sequence)");
    above_one({"model.expert_model_parallel_size", "model_parallel.expert_model_parallel_size"},
              "experts are spread over the ranks of tensor_parallel_degree, or over stages");
    above_one({"model.virtual_pipeline_model_parallel_size",
               "model_parallel.virtual_pipeline_model_parallel_size"},
              "layers are placed by the plan, or by hand with smp::partition; several parts on a "
              "stage need no setting");
  }

  void count_ranks() {
    const auto nodes = size({"trainer.num_nodes"});
    const auto devices = keys_.find<Json>({"trainer.devices"});
    if (!devices) return;
    std::int64_t each = -1;
    if (devices->value.is_array()) each = static_cast<std::int64_t>(devices->value.size());
    if (const auto number = base::json_as<std::int64_t>(devices->value)) each = *number;
    if (each < 1) {
      lose(devices->text(), ": the number of ranks is that of mpirun -n");
      return;
    }
    SMP_REQUIRE(each <= base::kMostStages, keys_.name(), ": ", devices->text(), ", expected 1 to ",
                base::kMostStages);
    into_.ranks = each * nodes;
    SMP_REQUIRE(*into_.ranks % (tp_ * pp_) == 0, keys_.name(), ": ", *into_.ranks, " ranks (", each,
                " devices on each of ", nodes, " nodes) are no multiple of ", pp_, " stages x ",
                tp_, " tensor-parallel ranks");
    replicas_ = *into_.ranks / (tp_ * pp_);
  }

  void batch() {
    const auto rows = keys_.find_count({"model.global_batch_size", "global_batch_size"});
    const auto each = keys_.find_count({"model.micro_batch_size", "micro_batch_size"});
    if (rows) into_.recipe["rows"] = rows->value;
    if (each) into_.recipe["micro-rows"] = each->value;
    const auto accumulated = keys_.find<std::int64_t>({"trainer.accumulate_grad_batches"});
    if (accumulated && accumulated->value > 1) {
      lose(accumulated->text(), ": batches follow from micro_batch_size and global_batch_size");
    }
    if (!rows || !each || replicas_ == 0) return;
    const auto of_step = each->value * replicas_;
    SMP_REQUIRE(rows->value % of_step == 0, keys_.name(), ": ", rows->text(), " is no multiple of ",
                each->text(), " x ", replicas_, " replicas");
    into_.settings["microbatches"] = rows->value / of_step;
  }

  // ---- types of numbers
  // ---------------------------------------------------------------------------

  void precision() {
    const bool masters =
        keys_.value_or<bool>({"model.megatron_amp_O2", "model.megatron_amp_02"}, false);
    const auto bf16 = keys_.find<bool>({"model_parallel.bf16", "bf16"});
    const auto fp16 = keys_.find<bool>({"model_parallel.fp16", "fp16"});
    if (bf16 && bf16->value) set_precision("bf16");
    if (fp16 && fp16->value) set_precision("fp16");
    if (const auto found = keys_.find<Json>({"trainer.precision"})) {
      of_trainer(*found, masters);
    }
    scaler();
  }

  void set_precision(const char* name) {
    into_.settings["precision"] = name;
    into_.recipe["dtype"] = "float32";  // as the program makes it; the setting says what it becomes
  }

  void of_trainer(const NemoKeys::Found<Json>& found, bool masters) {
    const auto text = found.value.is_string() ? found.value.get<std::string>() : found.value.dump();
    if (text == "32" || text == "32-true") {
      set_precision("fp32");
    } else if (text == "bf16" || text == "bf16-mixed") {
      set_precision(masters ? "bf16" : "amp");
    } else if (text == "16" || text == "16-mixed") {
      set_precision(masters ? "fp16" : "amp");
      if (!masters) lose(found.text(), ": autocast is to bfloat16 on CPUs");
    } else if (text == "bf16-true") {
      set_precision("bf16_sr");
      lose(found.text(),
           ": without float32 values small steps are lost; precision = bf16_sr rounds "
           "by chance instead, bf16 keeps such values");
    } else if (text == "16-true") {
      set_precision("fp16");
      lose(found.text(), ": precision = fp16 keeps float32 values in the optimizer");
    } else {
      lose(found.text(), ": precision is fp32, amp, bf16, bf16_sr or fp16 here");
    }
  }

  void scaler() {
    const bool scaled = into_.settings.value("precision", "") == std::string("fp16");
    for (const char* key : {"native_amp_init_scale", "native_amp_growth_interval", "hysteresis"}) {
      const auto found = keys_.find<Json>({base::concat("model.", key).c_str()});
      if (!found) continue;
      if (scaled) {
        lose(found->text(), ": an option of smp::GradScaler in the program");
      } else {
        into_.needless.push_back(found->text() + ": losses are scaled under fp16 only");
      }
    }
  }

  // ---- recomputation
  // ------------------------------------------------------------------------------

  void recomputation() {
    const auto which = keys_.find<std::string>(
        {"model.activations_checkpoint_granularity", "language_model.recompute_granularity"});
    const auto method = keys_.find<std::string>(
        {"model.activations_checkpoint_method", "language_model.recompute_method"});
    const auto layers = keys_.find<std::int64_t>(
        {"model.activations_checkpoint_num_layers", "language_model.recompute_num_layers"});
    if (!which) {
      into_.recipe["recompute"] = "none";
      return;
    }
    if (which->value == "full") {
      into_.settings["checkpoint_modules"] = "DecoderLayer";
      into_.recipe["recompute"] = "layers";
    } else if (which->value == "selective") {
      into_.settings["checkpoint_attentions"] = true;
      into_.recipe["recompute"] = "attention";
    } else {
      return lose(which->text(), ": full or selective are known");
    }
    const bool each = !layers || layers->value == 1;
    if (which->value != "full" || !method || (method->value == "uniform" && each)) return;
    lose(method->text(), layers ? ", " + layers->text() : "",
         ": every layer is computed again by itself; activation_checkpointing = auto recomputes "
         "what it takes to fit stage_memory, smp::checkpoint_sequential groups of layers");
  }

  NemoKeys& keys_;
  Translation& into_;
  std::int64_t tp_ = 1, pp_ = 1, replicas_ = 0;  // 0: not known
};

}  // namespace

void translate_job(NemoKeys& keys, Translation& into) { JobSection(keys, into).translate(); }

}  // namespace smp::nemo
