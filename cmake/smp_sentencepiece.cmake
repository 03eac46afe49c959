# libsmp_sentencepiece.so, if SentencePiece is installed (Debian: libsentencepiece-dev). It is a shared object of its own,
# loaded when it is first needed, because Debian's SentencePiece carries and shows another protobuf than ours.
#
#   smp_add_sentencepiece()   the target smp_sentencepiece, or a line that says what is missing

function(smp_add_sentencepiece)
  if(SMP_SANITIZE)  # which refuse RTLD_DEEPBIND
    return()
  endif()
  find_path(SMP_SENTENCEPIECE_INCLUDE NAMES sentencepiece_trainer.h)
  find_library(SMP_SENTENCEPIECE_LIBRARY sentencepiece)
  find_library(SMP_SENTENCEPIECE_TRAINER sentencepiece_train)
  if(NOT SMP_SENTENCEPIECE_INCLUDE OR NOT SMP_SENTENCEPIECE_LIBRARY OR NOT SMP_SENTENCEPIECE_TRAINER)
    message(STATUS "No SentencePiece (Debian: libsentencepiece-dev): smp::data has byte tokens only")
    return()
  endif()
  add_library(smp_sentencepiece MODULE ${PROJECT_SOURCE_DIR}/src/data/sentencepiece/plugin.cpp)
  set_target_properties(smp_sentencepiece PROPERTIES UNITY_BUILD OFF
    CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR})
  target_include_directories(smp_sentencepiece PRIVATE ${PROJECT_SOURCE_DIR}/src)
  target_include_directories(smp_sentencepiece SYSTEM PRIVATE ${SMP_SENTENCEPIECE_INCLUDE})
  target_link_libraries(smp_sentencepiece PRIVATE
    smp_flags ${SMP_SENTENCEPIECE_TRAINER} ${SMP_SENTENCEPIECE_LIBRARY})
  if(TARGET smp)
    add_dependencies(smp smp_sentencepiece)  # who builds one wants both
    add_dependencies(smp_internal smp_sentencepiece)
  endif()
endfunction()
