// checkpoint/file_metadata.cpp: see the header.
#include "checkpoint/file_metadata.h"

#include "base/check.h"
#include "checkpoint/aliases.h"
#include "checkpoint/safetensors_file.h"

namespace smp::checkpoints {

Metadata with_format(Metadata metadata, const char* what) {
  for (const char* own : {kAliasKey, kChecksumKey}) {
    SMP_REQUIRE(metadata.count(own) == 0, what, ": the metadata \"", own,
                "\" is written by this library, and means something when the file is loaded; give "
                "yours another name");
  }
  metadata.emplace("format", "pt");
  return metadata;
}

}  // namespace smp::checkpoints
