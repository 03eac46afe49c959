// cli/nemo_config.cpp: see the header.
#include "cli/nemo_config.h"

#include "base/check.h"
#include "base/files.h"
#include "nemo/translation.h"

namespace smp::cli {

std::string translate_nemo(const std::string& file, const std::string& folder) {
  SMP_REQUIRE(!file.empty(), "smp config --from nemo FILE: which file?");
#ifdef SMP_WITH_NEMO
  constexpr std::size_t kMostBytes = std::size_t{16} << 20;
  const auto translation = nemo::from_nemo(base::read_file(file, kMostBytes), file);
  if (!folder.empty()) nemo::write(translation, folder);
  return nemo::text_of(translation, folder);
#else
  throw UnsupportedError(base::concat("this tool was built without yaml-cpp, which reads ", file,
                                      folder.empty() ? "" : " into " + folder,
                                      ": install libyaml-cpp-dev and build it again"));
#endif
}

}  // namespace smp::cli
