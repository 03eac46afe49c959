// config/original_job.cpp: rows of the original's names that concern jobs: files, ranks, messages,
// the environment.
#include "config/original_sections.h"

namespace smp::base::original {

OriginalSection files() {
  return {
      "Files",
      {
          {"smp.save", "`smp::save(value, path)`, `{.partial = false}`",
           "safetensors instead of pickle: a StateDict, or any value with a codec",
           "SavedFiles.OfPartsAreEachRanksOwn"},
          {"smp.save(partial)", "`{.partial = false}` for one file of all", "true, as there",
           "SavedFiles.ForAllAreOneFile"},
          {"smp.save(pickle_module)", "left out", "safetensors, which runs no code when it is read",
           "SavedFiles.AreNoPickles"},
          {"smp.save(pickle_protocol)", "left out", "as above", "SavedFiles.AreNoPickles"},
          {"smp.save(v3)", "`{.per_replica = true}`", "",
           "SavedFiles.OfReplicasAreEachReplicasOwn"},
          {"smp.load", "`smp::load(path)`, `smp::load<T>(path, {.partial = false})`",
           "parts of another layout are refused by name",
           "SavedFiles.OfAnotherLayoutOrTypeAreRefused"},
          {"smp.load(partial)", "`{.partial = false}` for one file of all", "",
           "SavedFiles.ForAllAreOneFile"},
          {"smp.load(map_location)", "`dict.at(name).to(device)`",
           "tensors are read on the CPU; load_state_dict() brings them to where parameters are",
           "SavedFiles.AreReadOnTheCpu"},
          {"smp.load(pickle_module)", "left out", "safetensors, which runs no code when it is read",
           "SavedFiles.AreNoPickles"},
          {"smp.load(pickle_load_args)", "left out", "as above", "SavedFiles.AreNoPickles"},
          {"smp.load(back_compat)", "", "there are no files of earlier versions",
           "SavedFiles.OfAnotherLayoutOrTypeAreRefused"},
          {"smp.save_checkpoint",
           "`smp::save_safetensors(model, path)` and "
           "`smp::save_safetensors(smp::optimizer_state_dict(model, optimizer), path)`",
           "whole, and fit any layout; the optimizer too. A folder with tags, the newest and the "
           "last few is the program's",
           "SlicedState.IsSavedAtOneDegreeAndTrainedOnAtAnother"},
          {"save_checkpoint(path)", "the path of a file each", "folders are the program's",
           "SavedFiles.OfTagsAreFoldersOfTheProgram"},
          {"save_checkpoint(tag)", "a folder of the program", "",
           "SavedFiles.OfTagsAreFoldersOfTheProgram"},
          {"save_checkpoint(partial)", "`smp::save(model.local_state_dict(), path)` for true", "",
           "SavedFiles.BringAModelBack"},
          {"save_checkpoint(model)", "`smp::save_safetensors(model, path)`", "",
           "SlicedState.IsSavedAtOneDegreeAndTrainedOnAtAnother"},
          {"save_checkpoint(optimizer)",
           "`smp::save_safetensors(smp::optimizer_state_dict(model, optimizer), path)`", "",
           "SlicedState.IsSavedAtOneDegreeAndTrainedOnAtAnother"},
          {"save_checkpoint(user_content)", "`smp::save(value, path, {.partial = false})`",
           "a struct of yours", "SavedFiles.ForAllAreOneFile"},
          {"save_checkpoint(translate_if_full)", "left out",
           "files have the names of the undistributed model",
           "SlicedState.OfMarkedModulesHasTheNamesOfTheOriginals"},
          {"save_checkpoint(num_kept_partial_checkpoints)", "", "the program removes files",
           "SavedFiles.OfTagsAreFoldersOfTheProgram"},
          {"smp.resume_from_checkpoint",
           "`smp::load_safetensors(model, path)`, `smp::load_optimizer_state_dict(...)`",
           "at once, also before placement; and `smp::set_step_count(steps)`, so that no masks are "
           "drawn again",
           "SlicedState.IsSavedAtOneDegreeAndTrainedOnAtAnother"},
          {"resume_from_checkpoint(tag)", "a folder of the program", "",
           "SavedFiles.OfTagsAreFoldersOfTheProgram"},
          {"resume_from_checkpoint(partial)", "`model.load_state_dict(smp::load(path))` for true",
           "", "SavedFiles.BringAModelBack"},
          {"resume_from_checkpoint(strict)", "`smp::load_safetensors(model, path, strict)`", "",
           "OriginalCalls.LoadingMayLeaveOutWhatIsMissing"},
          {"resume_from_checkpoint(load_optimizer_states)", "a call of its own",
           "the older name of load_optimizer",
           "SlicedState.IsSavedAtOneDegreeAndTrainedOnAtAnother"},
          {"resume_from_checkpoint(load_optimizer)", "a call of its own", "",
           "SlicedState.IsSavedAtOneDegreeAndTrainedOnAtAnother"},
          {"resume_from_checkpoint(load_sharded_optimizer_state)", "left out",
           "state of any number of replicas is loaded by any other",
           "SlicedState.OfShardedOptimizersIsThatOfOthers"},
          {"resume_from_checkpoint(translate_function)",
           "`smp::without_prefix(dict, prefix)`, or a loop over the dict", "",
           "SavedFiles.AreTranslatedOnTheirWay"},
          {"get_full_state_dict_from_sharded_data_parallel_checkpoint", "",
           "files are whole: nothing is to be merged",
           "SlicedState.IsSavedAtOneDegreeAndTrainedOnAtAnother"},
          {"get_full_state_dict_from_sharded_data_parallel_checkpoint(dtype)", "`tensor.to(dtype)`",
           "", "ModelFile.OfOtherTypesIsConverted"},
          {"get_full_state_dict_from_sharded_data_parallel_checkpoint(tag)",
           "a folder of the program", "", "SavedFiles.OfTagsAreFoldersOfTheProgram"},
          {"get_full_state_dict_from_sharded_data_parallel_checkpoint(remove_smp_prefix)",
           "`smp::without_prefix(dict, prefix)`", "names here have no prefix",
           "SlicedState.OfMarkedModulesHasTheNamesOfTheOriginals"},
      }};
}

OriginalSection ranks() {
  constexpr std::string_view kTables = "Topology.MatchesThePublishedTableOfPTD";
  constexpr std::string_view kGroups = "Messages.CountRanksInAnyGroup";
  constexpr std::string_view kNoProcessGroup =
      "no c10d group: `smp::all_gather`, `broadcast`, `barrier` take the group";
  return {"Ranks and groups",
          {
              {"smp.rank", "`smp::rank()`", "", kTables},
              {"smp.size", "`smp::size()`", "", "Topology.SizesMultiplyToTheWorld"},
              {"smp.local_rank", "`smp::local_rank()`", "", "Topology.GroupsRanksByMachine"},
              {"smp.local_size", "`smp::local_size()`", "", "Topology.GroupsRanksByMachine"},
              {"smp.mp_rank", "`smp::mp_rank()`", "", kTables},
              {"smp.mp_size", "`smp::mp_size()`", "", "Topology.SizesMultiplyToTheWorld"},
              {"smp.pp_rank", "`smp::pp_rank()`", "", kTables},
              {"smp.pp_size", "`smp::pp_size()`", "", "Topology.SizesMultiplyToTheWorld"},
              {"smp.tp_rank", "`smp::tp_rank()`", "", kTables},
              {"smp.tp_size", "`smp::tp_size()`", "", "Topology.SizesMultiplyToTheWorld"},
              {"smp.dp_rank", "`smp::dp_rank()`",
               "samples of this rank: `smp::data_shard()`, right in every mode", kTables},
              {"smp.dp_size", "`smp::dp_size()`", "", "Topology.SizesMultiplyToTheWorld"},
              {"smp.rdp_rank", "`smp::rdp_rank()`", "", kTables},
              {"smp.rdp_size", "`smp::rdp_size()`", "", "Topology.SizesMultiplyToTheWorld"},
              {"smp.get_mp_group", "`smp::group(smp::Group::kMp)`", "", kGroups},
              {"smp.get_tp_group", "`smp::group(smp::Group::kTp)`", "", kGroups},
              {"smp.get_dp_group", "`smp::group(smp::Group::kDp)`", "", kGroups},
              {"smp.get_world_process_group", "`smp::Group::kWorld`", kNoProcessGroup, kGroups},
              {"smp.get_mp_process_group", "`smp::Group::kMp`", kNoProcessGroup, kGroups},
              {"smp.get_pp_process_group", "`smp::Group::kPp`", kNoProcessGroup, kGroups},
              {"smp.get_tp_process_group", "`smp::Group::kTp`", kNoProcessGroup, kGroups},
              {"smp.get_dp_process_group", "`smp::Group::kDp`", kNoProcessGroup, kGroups},
              {"smp.get_rdp_process_group", "`smp::Group::kRdp`", kNoProcessGroup, kGroups},
              {"CommGroup.WORLD", "`smp::Group::kWorld`", "", kGroups},
              {"CommGroup.MP_GROUP", "`smp::Group::kMp`", "", kGroups},
              {"CommGroup.PP_GROUP", "`smp::Group::kPp`", "", kGroups},
              {"CommGroup.DP_GROUP", "`smp::Group::kDp`", "", kGroups},
              {"CommGroup.TP_GROUP", "`smp::Group::kTp`", "", kGroups},
              {"CommGroup.RDP_GROUP", "`smp::Group::kRdp`", "", kGroups},
              {"smp.WORLD", "`smp::Group::kWorld`", "", kGroups},
              {"smp.MP_GROUP", "`smp::Group::kMp`", "", kGroups},
              {"smp.PP_GROUP", "`smp::Group::kPp`", "", kGroups},
              {"smp.DP_GROUP", "`smp::Group::kDp`", "", kGroups},
              {"smp.TP_GROUP", "`smp::Group::kTp`", "", kGroups},
              {"smp.RDP_GROUP", "`smp::Group::kRdp`", "", kGroups},
              {"RankType.WORLD_RANK", "`smp::Peer(3)`", "", kGroups},
              {"RankType.MP_RANK", "`smp::Peer(3, smp::Group::kMp)`", "", kGroups},
              {"RankType.PP_RANK", "`smp::Peer(1, smp::Group::kPp)`", "", kGroups},
              {"RankType.DP_RANK", "`smp::Peer(1, smp::Group::kDp)`", "", kGroups},
              {"RankType.TP_RANK", "`smp::Peer(1, smp::Group::kTp)`", "", kGroups},
              {"RankType.RDP_RANK", "`smp::Peer(1, smp::Group::kRdp)`", "", kGroups},
          }};
}

OriginalSection messages() {
  return {"Messages",
          {
              {"smp.send", "`smp::send(value, {1, smp::Group::kPp})`",
               "any value with a codec; does not wait for the receiver, as "
               "`smp::send_and_wait(value, peer, seconds)` does",
               "Messages.BringEveryKindOfValue"},
              {"smp.recv_from", "`auto value = smp::recv_from<T>({0, smp::Group::kPp})`",
               "names the type; another one is refused. With a deadline: "
               "`smp::try_recv_from<T>(peer, seconds)`",
               "Messages.OfAnotherTypeNameBothTypes"},
              {"smp.broadcast", "`value = smp::broadcast(value, root, group)`",
               "all ranks of the group call it, the receivers too, with values of one type",
               "Session.BroadcastsAndMeets"},
              {"smp.allgather", "`smp::all_gather(value, group)`", "of values of one type",
               "Session.GathersWhatEachRankHas"},
              {"smp.barrier", "`smp::barrier(group)`", "", "Session.BroadcastsAndMeets"},
              {"smp.mp_barrier", "`smp::barrier(smp::Group::kMp)`", "",
               "OriginalCalls.BarriersAreOfAnyGroup"},
              {"smp.dp_barrier", "`smp::barrier(smp::Group::kDp)`", "",
               "Messages.OfBodiesOfReplicasPairByMicrobatch"},
          }};
}

OriginalSection environment() {
  constexpr std::string_view kIgnored = "OriginalNames.VariablesOfTheOriginalAreNoMistake";
  return {
      "Environment and launcher",
      {
          {"SM_HP_MP_PARAMETERS", "the same", "as JSON",
           "ConfigFile.AcceptsTheParametersOfTheOriginalWithComments"},
          {"--mp_parameters", "`--smp.KEY VALUE`", "flags are taken out of `argv`",
           "Flags.AreTakenOutOfTheArguments"},
          {"SMP_NCCL_THROTTLE_LIMIT", "", "calls of NCCL are launched by turns; ignored", kIgnored},
          {"SMP_D2D_GPU_BUFFER_SIZE_BYTES", "", "buffers grow as they are needed; ignored",
           kIgnored},
          {"SMP_DISABLE_D2D", "key `transport` = \"mpi\"", "ignored", kIgnored},
          {"SMP_ENABLE_CROSS_NODE_D2D", "key `transport` = \"ucx\" or \"ofi\"", "ignored",
           kIgnored},
          {"SMDDP_AG_SCRATCH_BUFFER_SIZE_BYTES", "", "of a library that is not used; ignored",
           kIgnored},
          {"SMDDP_AG_SORT_BUFFER_SIZE_BYTES", "", "of a library that is not used; ignored",
           kIgnored},
          {"HF_TRAINER_SMP_SDP_SAVE_FULL_MODEL", "", "of Python's Trainer; ignored", kIgnored},
          {"modelparallel(enabled)", "left out", "who starts a program with `mpirun` has it on",
           "ZooOverMpi.EqualsOneProcess"},
          {"modelparallel(parameters)",
           "key by key, or the path of a JSON file: `--smp.config FILE`", "",
           "ConfigFile.AcceptsTheParametersOfTheOriginalWithComments"},
          {"mpi(processes_per_host)", "`mpirun --map-by ppr:N:node`", "",
           "Topology.GroupsRanksByMachine"},
          {"mpi(custom_mpi_options)", "options of `mpirun`", "none is needed",
           "ZooOverMpi.EqualsOneProcess"},
      }};
}

OriginalSection tensorflow() {
  constexpr std::string_view kReason = "of TensorFlow; the calls above do it for LibTorch";
  return {"TensorFlow",
          {
              {"smp.CheckpointManager", "", kReason, "SavedFiles.BringAModelBack"},
              {"CheckpointManager.save", "", "of TensorFlow; smp::save_safetensors()",
               "SavedFiles.BringAModelBack"},
              {"CheckpointManager.restore", "",
               "of TensorFlow; smp::load_safetensors(), at any time", "SavedFiles.BringAModelBack"},
              {"CheckpointManager(directory)", "", "of TensorFlow; a folder of the program",
               "SavedFiles.OfTagsAreFoldersOfTheProgram"},
              {"CheckpointManager(checkpoint_name)", "", "of TensorFlow; a folder of the program",
               "SavedFiles.OfTagsAreFoldersOfTheProgram"},
              {"CheckpointManager(max_to_keep)", "", "of TensorFlow; the program removes files",
               "SavedFiles.OfTagsAreFoldersOfTheProgram"},
              {"tf.DistributedModel.save_model", "", kReason, "SavedFiles.BringAModelBack"},
              {"smp.register_post_partition_hook", "`model.on_placed(callback)`", kReason,
               "PostPartitionHook.RunsOnceWhenTheModelIsPlacedAndLaterAtOnce"},
          }};
}

}  // namespace smp::base::original
