// data/plugins/own_library.cpp: see the header.
#include "data/plugins/own_library.h"

#include <dlfcn.h>

#include <filesystem>
#include <system_error>
#include <vector>

#include "base/check.h"
#include "base/files.h"

namespace smp::data {
namespace {

// Where the file may lie: beside what this code is in, libsmp.so or a program; or, of a program,
// one folder above (in a build), or in the library folder (installed).
std::vector<std::string> possible_paths(const std::string& file) {
  Dl_info own;
  if (::dladdr(reinterpret_cast<const void*>(&possible_paths), &own) == 0) return {file};
  std::error_code ignored;
  const auto folder = std::filesystem::canonical(own.dli_fname, ignored).parent_path();
  std::vector<std::string> paths;
  for (const char* below : {".", "..", "../lib"}) {
    paths.push_back((folder / below / file).lexically_normal().string());
  }
  return paths;
}

}  // namespace

OwnLibrary open_own_library(const std::string& file, const char* function,
                            const std::string& remedy) {
  for (const auto& path : possible_paths(file)) {
    if (!base::file_exists(path)) continue;
    // What it is linked with may show names that this process has already, of another version.
    // Without RTLD_DEEPBIND it would use those.
    void* const library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
    void* const found = library == nullptr ? nullptr : ::dlsym(library, function);
    if (found != nullptr) return {found, ""};
    return {nullptr, base::concat(path, " cannot be loaded: ", ::dlerror())};
  }
  return {nullptr, base::concat("this build has no ", file, ": ", remedy)};
}

}  // namespace smp::data
