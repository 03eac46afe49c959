// api/files/file_share.h: which ranks read which tensors of the files that they load.
#pragma once

#include <vector>

#include "base/input_file.h"
#include "checkpoint/module_tensors.h"

namespace smp {

class DistributedModelBase;
class Rank;

/// What one rank reads.
struct FileShare {
  std::vector<bool> reads;  ///< by number in tensors_of() of the model
  /// True of the rank that tells what the files have beside the model's tensors: pp_rank 0.
  bool speaks;
};

/// Returns this rank's share. Of a placed model each stage reads what it owns, where it sees the
/// very files that pp_rank 0 sees; that one reads all else. Of ranks that hold slices the first
/// reads. All ranks of model_holders() call it.
/// @param tensors  tensors_of() the model
/// @param seen     what this rank's files are; empty if it sees none
FileShare share_files(const DistributedModelBase& model, const Rank& rank,
                      const std::vector<checkpoints::NamedTensor>& tensors,
                      const std::vector<base::InputFile::Identity>& seen, const char* what);

}  // namespace smp
