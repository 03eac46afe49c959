// smp/program/saved_files.h: values and dicts in files, one for each rank or one for all.
#pragma once

#include <string>
#include <type_traits>
#include <typeinfo>
#include <utility>

#include "smp/codec.h"
#include "smp/detail/export.h"
#include "smp/state_dict.h"

namespace smp {

/// Which file of a path a call means.
struct FileOptions {
  /// True: the one of this rank's part, "PATH_{pp_rank}_{tp_rank}"; false: PATH, one for all.
  bool partial = true;
  /// Of partial files: each replica has its own, "PATH_{pp_rank}_{tp_rank}_{rdp_rank}", for what
  /// replicas do not have in common (`shard_optimizer_state`).
  bool per_replica = false;
};

namespace detail {
SMP_API void save(const StateDict& dict, const std::string& path, const FileOptions& options);
SMP_API StateDict load(const std::string& path, const FileOptions& options);
SMP_API StateDict to_dict(Packet value, const std::type_info& type);
SMP_API Packet from_dict(const StateDict& dict, const std::type_info& type,
                         const std::string& path);
}  // namespace detail

/// Writes `value`, a StateDict or any value with a codec (smp/codec.h), to a safetensors file on
/// this rank alone; what is written reads load() again. A StateDict has its names there, and other
/// programs read it. The file appears under its name only when it is complete on disk.
///
///     smp::save(model.local_state_dict(), "model.pt");                      // each rank its part
///     if (smp::rank() == 0) smp::save(epoch, "epoch", {.partial = false});  // one for all
///
/// Of a partial file only the first replica (smp::rdp_rank() 0) writes, unless per_replica is set:
/// the others have the same, and may make the call. A whole file is written by whoever calls.
/// @throws ResourceError     the disk is full or the folder not writable; an old file stays.
/// @throws UnsupportedError  a dtype that the format does not have.
template <class T>
void save(const T& value, const std::string& path, const FileOptions& options = {}) {
  if constexpr (std::is_same_v<T, StateDict>) {
    detail::save(value, path, options);
  } else {
    static_assert(is_crossable_v<T>, "smp: this type has no codec; see smp/codec.h");
    Writer writer;
    writer.put(value);
    detail::save(detail::to_dict(std::move(writer).take(), typeid(T)), path, options);
  }
}

/// Reads what save() wrote, on this rank alone: of a partial file its own.
///
///     model.load_state_dict(smp::load("model.pt"));  // each rank gives what it has
///     const int epoch = smp::load<int>("epoch", {.partial = false});
///
/// @throws UsageError  the file is not there, with those that are; partial files of another layout
///                     (pipeline, tensor or replica degree), which smp::load_safetensors() of a
///                     whole file does not mind; a value of another type; damage.
template <class T = StateDict>
T load(const std::string& path, const FileOptions& options = {}) {
  const auto dict = detail::load(path, options);
  if constexpr (std::is_same_v<T, StateDict>) {
    return dict;
  } else {
    auto packet = detail::from_dict(dict, typeid(T), path);
    Reader reader(packet);
    auto value = reader.get<T>();
    reader.finish();
    return value;
  }
}

}  // namespace smp
