// config/original_names.cpp: see the header.
#include "config/original_names.h"

#include "base/check.h"
#include "config/original_sections.h"

namespace smp::base {
namespace {

std::vector<OriginalKey> make_original_keys() {
  return {
      {"partitions", "", "both names", "Config.TreatsAnAliasAsTheSameKey"},
      {"pipeline_parallel_degree", "1", "what remains of the ranks, if it is not given",
       "Config.UsesAllRanksAsStagesByDefault"},
      {"tensor_parallel_degree", "1", "", "SettingChecks.RefuseTensorDegreesThatDoNotFit"},
      {"placement_strategy", R"("cluster")", "permutations in every source",
       "SettingsOfRows.PlacementMayBeAnyPermutation"},
      {"microbatches", "1", "a batch that does not divide evenly is no error",
       "StepArguments.AnUnevenBatchIsWeightedByItsRows"},
      {"pipeline", R"("interleaved")", "others as well",
       "ScheduleFile.GivesTheSameBitsAsEveryOtherSchedule"},
      {"active_microbatches", "", "partitions + 2 there",
       "Schedules.KnowHowManyMicrobatchesARankKeeps"},
      {"deterministic_server", "false", "", "Config.TakesKeysThatNothingNeedsAndSaysWhy"},
      {"static_mode", "false", "control flow may change",
       "StaticMode.ComputesTheSameBitsInEveryMode"},
      {"fast_mode", "false", "a part of static_mode, and on with it",
       "FastMode.IsWhatStaticModeComesWith"},
      {"auto_partition", "true", "modules placed by hand stay where they are in either case",
       "PartitionScope.LeavesTheRestToTheSettings"},
      {"default_partition", "0", "needed with auto_partition = false",
       "SettingChecks.NeedADefaultStageIfNothingElsePlacesModules"},
      {"memory_weight", "0.8", "does not depend on optimize",
       "StepJudge.MemoryCountsWhereAStageIsNearlyFull"},
      {"optimize", R"("memory")", "of layers only",
       "DistributedTransformerLayer.EqualsPlainLayersInARow"},
      {"skip_tracing", "false", "", "Tracing.ChangesNoResult"},
      {"delayed_parameter_initialization", "false",
       "true here: scopes work. Given as false, scopes have no effect",
       "DelayedInit.HasNoEffectIfSwitchedOff"},
      {"delayed_param_initialization", "false", "another spelling of it",
       "SettingsOfRows.OlderSpellingsMeanTheKey"},
      {"delay_param_initialization", "false", "as its scope is called",
       "SettingsOfRows.OlderSpellingsMeanTheKey"},
      {"load_partition", "false", "", "Config.RefusesNeedlessKeysThatContradictOthers"},
      {"partition_file", "",
       "a plan.json, which brings along how its run was trained, or an object of paths and stages",
       "SavedPlans.MakeRunsOfTheSameBitsAndSchedule"},
      {"contiguous", "true", "of TensorFlow", "SettingsOfRows.NeedlessOnesChangeNothing"},
      {"ddp", "false", "on here: ranks beyond the stages train replicas",
       "SettingChecks.MakeReplicasOfRanksBeyondTheStages"},
      {"ddp_port", "", "", "SettingsOfRows.NeedlessOnesChangeNothing"},
      {"ddp_dist_backend", R"("auto")", "", "SettingsOfRows.NeedlessOnesChangeNothing"},
      {"horovod", "false", "of TensorFlow", "Config.RefusesNeedlessKeysThatContradictOthers"},
      {"overlapping_allreduce", "true", "", "EarlyGradients.HaveTheBitsOfLateOnes"},
      {"prescaled_batch", "false", "", "PrescaledSteps.ReadTheSamplesOfTheirGroup"},
      {"_prescaled_batch", "false", "", "SettingsOfRows.OlderSpellingsMeanTheKey"},
      {"fp16_params", "false", "", "Config.OlderKeysOfPrecisionsMeanTheNewOne"},
      {"checkpoint_attentions", "false", "", "PlannedCheckpointing.PlansKnowMarksOfSettings"},
      {"_match_weights", "false", "always so", "SettingsOfRows.NeedlessOnesChangeNothing"},
      {"_fp32_grad_accumulation", "false", "on here",
       "WideGradients.MicrobatchesAreAddedInFloat32"},
      {"shard_optimizer_state", "false", "whole state dicts too",
       "SlicedState.OfShardedOptimizersIsThatOfOthers"},
      {"offload_activations", "false", "", "OffloadOnDevice.LeavesTheDevice"},
      {"activation_loading_horizon", "4", "", "PlannedCheckpointing.OffloadingWarnsOnCpus"},
      {"sharded_data_parallel_degree", "1", "",
       "Config.AcceptsDefaultsOfLaterFeaturesAndRefusesTheRest"},
      {"sdp_reduce_bucket_size", "500000000", "",
       "Config.AcceptsDefaultsOfLaterFeaturesAndRefusesTheRest"},
      {"sdp_param_persistence_threshold", "1000000", "",
       "Config.AcceptsDefaultsOfLaterFeaturesAndRefusesTheRest"},
      {"sdp_max_live_parameters", "1000000000", "",
       "Config.AcceptsDefaultsOfLaterFeaturesAndRefusesTheRest"},
      {"sdp_hierarchical_allgather", "true", "",
       "Config.AcceptsDefaultsOfLaterFeaturesAndRefusesTheRest"},
      {"sdp_gradient_clipping", "1.0", "",
       "Config.AcceptsDefaultsOfLaterFeaturesAndRefusesTheRest"},
      {"fp16", "false", "", "CastModel.Fp16TrainsWithAScaler"},
      {"bf16", "false", "", "CastModel.Bf16TrainsAsOneProcessWithMasters"},
  };
}

/// What the table says to write instead, in one line.
std::string answer_of(const OriginalName& name) {
  return concat(name.here.empty() ? "not here" : name.here,
                name.note.empty() ? "" : concat(" (", name.note, ")"));
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
                    " in the original: ", answer_of(name));
    }
  }
  return {};
}

std::string instead_of_value(std::string_view key, std::string_view value) {
  for (const auto& section : original_names()) {
    for (const auto& name : section.names) {
      if (name.name != concat(key, "[", value, "]")) continue;
      return concat("; it is a value of the original: ", answer_of(name));
    }
  }
  return {};
}

}  // namespace smp::base
