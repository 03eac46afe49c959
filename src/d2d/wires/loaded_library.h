// d2d/wires/loaded_library.h: a library that is loaded when a job first uses it.
// Threads: the rank's thread only.
#pragma once

namespace smp::d2d {

/// The name of a library in messages, and where it comes from.
struct LibraryOrigin {
  const char* name;                          ///< "UCX"
  const char* package;                       ///< of Debian
  const char* version;                       ///< the oldest that will do
  const char* instead = "transport = auto";  ///< the setting that does without
};

/// A loaded library, which stays loaded until the process ends.
class LoadedLibrary {
 public:
  /// @param file  as the loader finds it: "libucp.so.0"
  /// @throws PeerLostError  there is no such library; says which package has it.
  LoadedLibrary(const char* file, const LibraryOrigin& origin);

  /// Finds a function.
  /// @throws PeerLostError  the library has no such function; says which version has it.
  template <class Function>
  void load(const char* name, Function& function) const {
    function = reinterpret_cast<Function>(find(name));
  }

 private:
  void* find(const char* name) const;

  void* handle_;
  LibraryOrigin origin_;
};

}  // namespace smp::d2d
