# smp_precompile(TARGET): LibTorch's headers, which take a compiler half a minute, are parsed once for all such
# programs, and libraries that only programs use. Only where sources are joined: in other presets each source is
# compiled by what it includes itself.

# Made at the first use.
function(smp_add_torch_headers)
  if(TARGET smp_torch_headers)
    return()
  endif()
  set(source ${SMP_GENERATED_DIR}/torch_headers.cpp)
  file(CONFIGURE OUTPUT ${source} CONTENT "")
  add_library(smp_torch_headers OBJECT ${source})
  target_link_libraries(smp_torch_headers PRIVATE smp_flags smp::torch)
  target_precompile_headers(smp_torch_headers PRIVATE <torch/torch.h>)
  smp_use_as_program(smp_torch_headers)
  # What ccache compares instead of 700 MB, which differ from one folder to the next (CCACHE_PCH_EXTSUM).
  file(TIMESTAMP ${SMP_TORCH_ROOT}/include/torch/csrc/api/include/torch/torch.h time)
  file(CONFIGURE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/CMakeFiles/smp_torch_headers.dir/cmake_pch.hxx.gch.sum
       CONTENT "LibTorch ${SMP_TORCH_VERSION} in ${SMP_TORCH_ROOT}, of ${time}\n")
endfunction()

# Precompiled headers serve those that are compiled alike. Compilers make programs position-independent by themselves.
function(smp_use_as_program target)
  set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
  target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)  # for ccache
endfunction()

function(smp_precompile target)
  if(CMAKE_UNITY_BUILD)
    smp_add_torch_headers()
    smp_use_as_program(${target})
    target_precompile_headers(${target} REUSE_FROM smp_torch_headers)
  endif()
endfunction()
