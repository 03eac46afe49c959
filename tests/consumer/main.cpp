// A program that knows smp only as an installed package.
#include <smp/error.h>
#include <smp/version.h>

#include <ATen/ATen.h>
#include <iostream>

int main() {
  std::cout << "smp " << SMP_VERSION << ", LibTorch " << SMP_TORCH_VERSION << ", "
            << at::ones({2}).sum().item<double>() << "\n";
  try {
    throw smp::UsageError("caught across the library's border");
  } catch (const smp::Error& error) {
    std::cout << error.what() << "\n";
  }
}
