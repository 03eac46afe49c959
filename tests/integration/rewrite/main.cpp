// rewrite FROM TO: reads a safetensors file and writes its tensors and metadata to another.
#include <smp/checkpoint.h>

#include <cstdio>
#include <exception>
#include <stdexcept>

int main(int argc, char** argv) {
  try {
    if (argc != 3) throw std::invalid_argument("usage: rewrite FROM TO");
    smp::save_safetensors(smp::load_safetensors(argv[1]), argv[2]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
