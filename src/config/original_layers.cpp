// config/original_layers.cpp: rows of the original's names that concern layers: slices, public
// models, activations.
#include "config/original_sections.h"

namespace smp::base::original {

OriginalSection layers() {
  return {
      "smp.nn and what layers are made of",
      {
          {"smp.nn.DistributedModule", "`smp::DistributedModule`", "",
           "BatchPrimitives.MakeModulesThatAreRightWithBothKindsOfBatches"},
          {"smp.nn.DistributedLinear", "`smp::nn::DistributedLinear`",
           "every rank has the bias; also split along outputs", "DistributedLinear.EqualsLinear"},
          {"smp.nn.DistributedEmbedding", "`smp::nn::DistributedEmbedding`",
           "starts from N(0, 1), as the table of LibTorch that it stands for; there from "
           "initializer_range, 0.02",
           "DistributedEmbedding.EqualsEmbedding"},
          {"DistributedEmbedding(max_norm)", "`.max_norm(length)`",
           "of whole rows; a number for each distinct index is sent",
           "DistributedEmbedding.ShortensRowsAsEmbeddingDoes"},
          {"DistributedEmbedding(scale_grad_by_freq)", "`.scale_grad_by_freq(true)`",
           "each rank's batch counts its own indices",
           "DistributedEmbedding.ScalesGradientsByFrequencyAsEmbeddingDoes"},
          {"DistributedEmbedding(sparse)", "`.sparse(true)`", "",
           "DistributedEmbedding.EqualsEmbedding"},
          {"DistributedEmbedding(_skip_allgather)", "key `prescaled_batch`",
           "what it is for: ranks that have one batch",
           "SlicedTrainingOverMpi.OfOnePrescaledBatch"},
          {"DistributedEmbedding(_skip_scatter_and_merge)", "`smp::nn::DistributedVocabulary`",
           "slices of rows that stay slices are its scores and losses",
           "DistributedVocabulary.EqualsOneTableForBoth"},
          {"smp.nn.DistributedLayerNorm", "`smp::nn::DistributedLayerNorm`", "",
           "DistributedLayerNorm.EqualsLayerNorm"},
          {"smp.nn.DistributedAttentionLayer", "`smp::nn::DistributedAttentionLayer`",
           "options by name; any number of heads",
           "DistributedAttentionLayer.EqualsPlainAttention"},
          {"DistributedAttentionLayer(causal_mask_size)", "`.causal_mask_size`", "",
           "DistributedAttentionLayer.EqualsPlainAttention"},
          {"DistributedAttentionLayer(scale_attn_weights)", "",
           "scores are always divided by the root of the head size",
           "DistributedAttentionLayer.EqualsPlainAttention"},
          {"DistributedAttentionLayer(scale_attn_by_inverse_layer_idx)", "",
           "scale the query weights of layer i by 1/(i + 1) when they are loaded",
           "DistributedAttentionLayer.EqualsPlainAttention"},
          {"DistributedAttentionLayer(reorder_and_upcast_attn)", "",
           "softmax of 16 bits adds up in float32 anyway",
           "DistributedAttentionLayer.EqualsPlainAttention"},
          {"smp.nn.DistributedTransformerOutputLayer",
           "`smp::nn::DistributedTransformerOutputLayer`", "",
           "DistributedTransformerOutputLayer.EqualsTwoProducts"},
          {"smp.nn.DistributedTransformerLayer", "`smp::nn::DistributedTransformerLayer`",
           "takes and returns a struct instead of a tuple",
           "DistributedTransformerLayer.EqualsPlainLayersInARow"},
          {"DistributedTransformerLayer(add_cross_attention)",
           "options of a second attention layer", "",
           "DistributedTransformerLayer.EqualsPlainLayersInARow"},
          {"smp.nn.DistributedTransformer", "`smp::nn::DistributedTransformer`", "",
           "DistributedTransformer.AddsTwoExchangesOfSamples"},
          {"smp.nn.DistributedTransformerLMHead", "`smp::nn::DistributedTransformerLMHead`",
           "inputs are a struct", "DistributedTransformerLMHead.EqualsThePlainModel"},
          {"DistributedTransformerLMHead(add_lm_head)", "`model->hidden(...)`",
           "hidden states without scores",
           "DistributedTransformerLMHead.GivesHiddenStatesWithoutScores"},
          {"smp.nn.FlashAttentionLayer", "`at::scaled_dot_product_attention`",
           "LibTorch's own, in plain and in distributed layers",
           "DistributedAttentionLayer.EqualsPlainAttention"},
          {"smp.nn.FusedLayerNorm", "`smp::nn::LayerNorm`", "LibTorch's is one kernel",
           "SmpNn.IsSafeToOpenAsANamespace"},
          {"smp.optimizers.FusedNovoGrad", "",
           "not an optimizer of LibTorch; one of your own class is wrapped like any other",
           "DistributedOptimizer.ChosenAtRunTimeKeepsAClassOfTheUsersOwn"},
          {"smp.optimizers.FusedLamb", "`smp::norms(...)` in an optimizer of your own",
           "its norms of layers need all ranks", "Norms.AreThoseOfOneProcess"},
          {"smp.optimizers.FusedAdam", "`torch::optim::AdamW`", "", "OptimizerState.OfAdamW"},
          {"parameter_creation_scope", "`register_slice(name, whole, dim)`",
           "of `smp::DistributedModule`", "Replacement.TakesRulesOfTheUsersAndLeavesWhatIsBelow"},
          {"parameter_creation_scope(scaled_batch)", "`register_slice` or `register_parameter`",
           "slices see the group's batch, whole parameters their own samples",
           "BatchPrimitives.MakeModulesThatAreRightWithBothKindsOfBatches"},
          {"initialize_with_input_partition", "`register_drawn_slice(name, sizes, 1, fill)`",
           "slices are of the values that one process draws", "DrawnSlice.IsThatOfTheWhole"},
          {"initialize_with_output_partition", "`register_drawn_slice(name, sizes, 0, fill)`", "",
           "DrawnSlice.IsThatOfTheWhole"},
          {"fused_allgather_for_tp", "`smp::fused_allgather_for_tp(tensor, dim)`", "",
           "PrimitiveTraffic.IsWhatTheFormulasSay"},
          {"fwd_allreduce_for_tp", "`smp::fwd_allreduce_for_tp(tensor)`", "",
           "PrimitiveTraffic.IsWhatTheFormulasSay"},
          {"bwd_allreduce_for_tp", "`smp::bwd_allreduce_for_tp(tensor)`", "",
           "PrimitiveTraffic.IsWhatTheFormulasSay"},
          {"scatter_and_merge_for_tp", "`smp::scatter_and_merge_for_tp(tensor, split, merge)`", "",
           "PrimitiveTraffic.IsWhatTheFormulasSay"},
          {"reduce_scatter_for_tp", "`smp::reduce_scatter_for_tp(tensor, dim)`", "",
           "PrimitiveTraffic.IsWhatTheFormulasSay"},
      }};
}

OriginalSection hugging_face() {
  constexpr std::string_view kLoad = "`smp::hf::load(model, path, names)`";
  constexpr std::string_view kTheirs = "each stage reads what it owns (docs/hugging_face.md)";
  constexpr std::string_view kSave = "`smp::hf::save(model, folder, names)`";
  constexpr std::string_view kOurs = "a folder as from_pretrained() reads it";
  constexpr std::string_view kGpt2 = "GptWeights.MakeItHuggingFacesGpt2InPlainLibTorchAndSliced";
  constexpr std::string_view kBits = "RoundTrip.KeepsEveryBitInOneFileAndInSeveral";
  constexpr std::string_view kNoLayer =
      "no such model is built in; a model of yours with its names reads its files";
  constexpr std::string_view kNames = "SafetensorsSet.IsReadAsOneWhole";
  return {"Hugging Face",
          {
              {"get_hf_gpt2_transformer_layer_hooks", "samples/gpt",
               "its GPT is made of distributed layers and reads the public GPT-2", kGpt2},
              {"translate_state_dict_to_hf_gpt2", kSave, kOurs, kBits},
              {"translate_hf_state_dict_to_smdistributed_gpt2", kLoad, kTheirs, kGpt2},
              {"translate_layer_state_dict_to_hf_gpt2_block", kSave, kOurs, kBits},
              {"translate_hf_block_state_dict_to_smdistributed", kLoad, kTheirs, kGpt2},
              {"translate_state_dict_to_hf_bert", kSave, kOurs, kBits},
              {"translate_hf_state_dict_to_smdistributed_bert", kLoad, kTheirs, kBits},
              {"translate_state_dict_to_hf_roberta", kSave, kOurs, kBits},
              {"translate_hf_state_dict_to_smdistributed_roberta", kLoad, kTheirs, kBits},
              {"translate_state_dict_to_hf_gptj", "", kNoLayer, kNames},
              {"translate_hf_gptj_state_dict_to_smdistributed_gptj", "", kNoLayer, kNames},
              {"translate_state_dict_to_hf_gptneo", "", kNoLayer, kNames},
              {"translate_hf_state_dict_to_smdistributed_gptneo", "", kNoLayer, kNames},
              {"translate_state_dict_to_hf_gptneox", "", kNoLayer, kNames},
          }};
}

OriginalSection activations() {
  return {
      "Activations and precision",
      {
          {"smp.set_activation_checkpointing", "`smp::set_activation_checkpointing(module)`",
           "of modules on any ranks", "ActivationCheckpointing.OverRanksGivesTheSameBits"},
          {"set_activation_checkpointing(preserve_rng_state)", "`{.preserve_rng_state = false}`",
           "masks of modules in steps are the same anyway",
           "ActivationCheckpointing.CodeDrawsTheSameNumbers"},
          {"set_activation_checkpointing(pack_args_as_tuple)", "left out",
           "arguments of any type with a codec",
           "ActivationCheckpointing.OfASequentialKeepsItsArgumentsOnly"},
          {"set_activation_checkpointing(strategy)", "`{.strategy = \"contiguous\"}`",
           "of an smp::nn::Sequential", "SelectiveCheckpointing.OverRanksGivesTheSameBits"},
          {"checkpoint", "`smp::checkpoint(code, arguments...)`", "code or a module",
           "ActivationCheckpointing.CodeDrawsTheSameNumbers"},
          {"checkpoint_sequential", "`smp::checkpoint_sequential(options, sequential, inputs...)`",
           "of modules on this rank; mark the Sequential for those of others",
           "CheckpointSequential.GroupsRunAgainFromTheLastOn"},
          {"smp.amp.GradScaler", "`smp::GradScaler`", "with clipping: `scaler.unscale_(optimizer)`",
           "GradScaler.EveryRankSkipsWhatOneFoundInfinite"},
      }};
}

}  // namespace smp::base::original
