// nemo/recipe_section.cpp: how a model is trained, as flags of samples/llama.
#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/check.h"
#include "nemo/sections.h"

namespace smp::nemo {
namespace {

using base::Json;

class RecipeSection {
 public:
  RecipeSection(NemoKeys& keys, Translation& into) : keys_(keys), into_(into) {}

  void translate() {
    optimizer();
    length();
    schedule();
    text();
  }

 private:
  template <class... Parts>
  void lose(const Parts&... parts) {
    into_.lost.push_back(base::concat(parts...));
  }

  void flag(const char* name, std::initializer_list<const char*> keys) {
    const auto found = keys_.find<Json>(keys);
    if (!found) return;
    SMP_REQUIRE(found->value.is_number(), keys_.name(), ": ", found->text(), ", expected a number");
    into_.recipe[name] = found->value;
  }

  void optimizer() {
    const auto name = keys_.find<std::string>({"model.optim.name", "optimizer"});
    constexpr std::array kAdams = {"adam", "adamw", "fused_adam", "megatron_fused_adam"};
    constexpr std::array kSharded = {"distributed_fused_adam", "mcore_distributed_optim"};
    const auto is_among = [&](const auto& list) {
      return std::find(list.begin(), list.end(), name->value) != list.end();
    };
    if (name && is_among(kSharded)) {
      into_.settings["shard_optimizer_state"] = true;
    } else if (name && !is_among(kAdams)) {
      lose(name->text(), ": the recipe has AdamW; construct another one of torch::optim");
    }
    const auto sharded = keys_.find<bool>({"use_distributed_optimizer"});
    if (sharded && sharded->value) into_.settings["shard_optimizer_state"] = true;
    flag("lr", {"model.optim.lr", "lr"});
    clip();
    decay();
    moments();
  }

  /// NeMo and Megatron-LM do not clip to 0 or less, and NeMo to nothing; the recipe clips to 1
  /// then.
  void clip() {
    constexpr double kNever = 1e30;
    flag("clip", {"trainer.gradient_clip_val", "clip_grad"});
    const auto found = into_.recipe.find("clip");
    const bool clips = found != into_.recipe.end() ? *found > 0 : !keys_.has_below("trainer.");
    if (!clips) into_.recipe["clip"] = kNever;
  }

  void decay() {
    flag("weight-decay", {"model.optim.weight_decay", "weight_decay"});
    if (!into_.recipe.contains("weight-decay") && keys_.has_below("model.optim.")) {
      into_.recipe["weight-decay"] = 0;  // the default of NeMo's optimizers; the recipe's is 0.1
    }
    const bool all = keys_.value_or<bool>({"model.do_layer_norm_weight_decay"}, false);
    if (all || into_.recipe.value("weight-decay", 0.0) == 0.0) return;
    lose(
        "weight decay: NeMo and Megatron-LM leave out biases and norms, the recipe has it on all "
        "parameters; give torch::optim::AdamW two groups");
  }

  void moments() {
    const auto betas = keys_.find<std::vector<double>>({"model.optim.betas"});
    const auto first = keys_.find<double>({"adam_beta1"});
    const auto second = keys_.find<double>({"adam_beta2"});
    const auto epsilon = keys_.find<double>({"model.optim.eps", "adam_eps"});
    const auto other = [&](const auto& found, auto wanted) {
      if (found && found->value != wanted) lose(found->text(), ": the recipe has ", Json(wanted));
    };
    other(betas, std::vector<double>{0.9, 0.95});
    other(first, 0.9);
    other(second, 0.95);
    other(epsilon, 1e-8);
  }

  void length() {
    flag("steps", {"trainer.max_steps", "train_iters"});
    if (into_.recipe.contains("steps") && into_.recipe["steps"] < 1) {  // -1: no limit
      into_.recipe.erase("steps");
    }
    if (const auto found = keys_.find<Json>({"trainer.val_check_interval", "eval_interval"})) {
      if (found->value.is_number_integer()) {
        into_.recipe["evaluate-every"] = found->value;
      } else {
        lose(found->text(), ": a number of steps is needed (--evaluate-every)");
      }
    }
    flag("save-every", {"save_interval"});
  }

  // ---- learning rate
  // ------------------------------------------------------------------------------

  void schedule() {
    const auto name = keys_.find<std::string>({"model.optim.sched.name", "lr_decay_style"});
    const auto warmup = keys_.find_count({"model.optim.sched.warmup_steps", "lr_warmup_iters"}, 0);
    const auto held = keys_.find_count({"model.optim.sched.constant_steps"}, 0);
    if (warmup) into_.recipe["warmup"] = warmup->value;
    if (name && !set_decay(*name)) return;
    if (!name) return;
    const auto steps = keys_.find_count({"model.optim.sched.max_steps", "lr_decay_iters"});
    const auto all = steps ? std::optional(steps->value)
                           : base::json_as<std::int64_t>(into_.recipe.value("steps", Json()));
    const auto rising = warmup ? warmup->value : 0, constant = held ? held->value : 0;
    if (all && into_.recipe["decay"] != "constant") {
      SMP_REQUIRE(*all >= rising + constant, keys_.name(), ": ", *all, " steps of ", name->text(),
                  " are fewer than ", rising, " of warm-up and ", constant, " at the end");
      into_.recipe["decay-steps"] = *all - rising - constant;
    }
    floor();
  }

  bool set_decay(const NemoKeys::Found<std::string>& name) {
    const auto& value = name.value;
    if (value == "CosineAnnealing" || value == "cosine") {
      into_.recipe["decay"] = "cosine";
    } else if (value == "WarmupAnnealing" || value == "linear") {
      into_.recipe["decay"] = "linear";
    } else if (value == "WarmupHoldPolicy" || value == "constant") {
      into_.recipe["decay"] = "constant";
    } else {
      lose(name.text(), ": cosine, linear and constant are known (smp::LrSchedule)");
      return false;
    }
    return true;
  }

  void floor() {
    const auto least = keys_.find<double>({"model.optim.sched.min_lr", "min_lr"});
    if (!least) return;
    const auto peak = into_.recipe.value("lr", 0.0);
    if (peak > 0 && least->value >= 0 && least->value <= peak) {
      into_.recipe["floor"] = least->value / peak;
    } else {
      lose(least->text(), ": needs a rate above it (the floor is a share of it)");
    }
  }

  // ---- text
  // ---------------------------------------------------------------------------------------

  void text() {
    const auto rows = keys_.find_count({"model.data.seq_length", "seq_length"});
    const auto model = keys_.find_count({"model.encoder_seq_length"});
    if (rows || model) into_.recipe["context"] = rows ? rows->value : model->value;
    if (const auto data = keys_.find<Json>({"model.data.data_prefix", "data_path"})) {
      lose(data->text(),
           ": give the pairs of .bin and .idx as --data, PREFIX.idx (docs/data.md); documents of "
           "several are mixed by their number, not by weights");
    }
    for (const char* key : {"model.data.reset_position_ids", "model.data.reset_attention_mask",
                            "reset_position_ids", "reset_attention_mask"}) {
      const auto reset = keys_.find<bool>({key});
      if (!reset || !reset->value) continue;
      lose(reset->text(), ": smp::data::TokenLoaderOptions::reset_at_documents, in the program");
    }
    tokenizer();
  }

  void tokenizer() {
    const auto model = keys_.find<std::string>({"model.tokenizer.model", "tokenizer_model"});
    const auto library = keys_.find<std::string>({"model.tokenizer.library", "tokenizer_type"});
    if (!model) return;
    if (!library || library->value == "sentencepiece" || library->value == "Llama2Tokenizer" ||
        library->value == "SentencePieceTokenizer") {
      into_.recipe["tokenizer"] = model->value;
    } else {
      lose(model->text(), " (", library->text(),
           "): only models of SentencePiece are read; one's own is a smp::data::Tokenizer");
    }
  }

  NemoKeys& keys_;
  Translation& into_;
};

}  // namespace

void translate_recipe(NemoKeys& keys, Translation& into) { RecipeSection(keys, into).translate(); }

}  // namespace smp::nemo
