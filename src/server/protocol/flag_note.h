// server/protocol/flag_note.h: flags of tensors as a note, '\1' for each that is set. Threads: any.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

#include "server/protocol/note.h"
#include "server/protocol/tensor_flags.h"

namespace smp::server {

inline Note note_of(const TensorFlags& flags) {
  std::string note;
  for (std::size_t i = 0; i < flags.size(); ++i) note += flags[i] ? '\1' : '\0';
  return note;
}

inline TensorFlags flags_of(std::string_view note) {
  TensorFlags flags;
  for (const char flag : note) flags.push_back(flag != '\0');
  return flags;
}

}  // namespace smp::server
