// d2d/wires/loaded_library.cpp: see the header.
#include "d2d/wires/loaded_library.h"

#include <dlfcn.h>

#include "base/check.h"
#include "smp/error.h"

namespace smp::d2d {

LoadedLibrary::LoadedLibrary(const char* file, const LibraryOrigin& origin)
    : handle_(::dlopen(file, RTLD_NOW | RTLD_LOCAL)), origin_(origin) {
  SMP_REQUIRE_AS(PeerLostError, handle_ != nullptr, "loading ", origin.name,
                 " failed: ", ::dlerror(), "; install it (Debian: ", origin.package, "), or use ",
                 origin.instead);
}

void* LoadedLibrary::find(const char* name) const {
  void* const function = ::dlsym(handle_, name);
  SMP_REQUIRE_AS(PeerLostError, function != nullptr, "this ", origin_.name, " has no ", name,
                 "; version ", origin_.version, " or newer is needed, or use ", origin_.instead);
  return function;
}

}  // namespace smp::d2d
