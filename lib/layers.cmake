# mc_lib, mc_link and mc_tool: how a folder becomes a target. A file's name picks its flags:
# *_avx2.cc, *_avx512.cc, *_avx512bf16.cc, *_avx512vnni.cc and *_avx512clmul.cc are compiled for that instruction set
# and must only be entered after a cpuid check.

function(mc_flags_by_name)
  foreach(file ${ARGN})
    if(file MATCHES "_avx[0-9a-z]+\\.cc$")
      set_source_files_properties(${file} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
    endif()
    if(file MATCHES "_avx2\\.cc$")
      set_source_files_properties(${file} PROPERTIES COMPILE_OPTIONS "-mavx2;-mfma;-mf16c;-O3")
    elseif(file MATCHES "_avx512\\.cc$")
      set_source_files_properties(${file} PROPERTIES COMPILE_OPTIONS
        "-mavx512f;-mavx512bw;-mavx512vl;-mavx512dq;-mavx2;-mfma;-mf16c;-mprefer-vector-width=512;-O3")
    elseif(file MATCHES "_avx512clmul\\.cc$")
      set_source_files_properties(${file} PROPERTIES COMPILE_OPTIONS
        "-mavx512f;-mavx512bw;-mavx512vl;-mavx512dq;-mvpclmulqdq;-mpclmul;-msse4.2;-mprefer-vector-width=512;-O3")
    elseif(file MATCHES "_avx512vnni\\.cc$")
      set_source_files_properties(${file} PROPERTIES COMPILE_OPTIONS
        "-mavx512f;-mavx512bw;-mavx512vl;-mavx512dq;-mavx512vnni;-mavx2;-mfma;-mf16c;-mprefer-vector-width=512;-O3")
    elseif(file MATCHES "_avx512bf16\\.cc$")
      set_source_files_properties(${file} PROPERTIES COMPILE_OPTIONS
        "-mavx512f;-mavx512bw;-mavx512vl;-mavx512dq;-mavx512bf16;-mavx2;-mfma;-mf16c;-mprefer-vector-width=512;-O3")
    endif()
  endforeach()
endfunction()

# mc_batches(target files...): the files compile in batches of even size, as few as there may be. A batch of 16 compiles
# its headers and their templates once, and takes half a minute at most.
set(MC_BATCH_MOST 16)
function(mc_batches target)
  list(LENGTH ARGN files)
  math(EXPR batches "(${files} + ${MC_BATCH_MOST} - 1) / ${MC_BATCH_MOST}")
  math(EXPR size "(${files} + ${batches} - 1) / ${batches}")
  set_target_properties(${target} PROPERTIES UNITY_BUILD_BATCH_SIZE ${size})
endfunction()

# A folder under lib/ with no .cc yet is an interface target, so that the diagram is always whole.
function(mc_lib name)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/lib/${name}/*.cc
    ${CMAKE_CURRENT_SOURCE_DIR}/lib/${name}/*/*.cc)
  if(sources)
    add_library(mc_${name} STATIC ${sources})
    mc_batches(mc_${name} ${sources})
    set(scope PUBLIC)
    mc_flags_by_name(${sources})
  else()
    add_library(mc_${name} INTERFACE)
    set(scope INTERFACE)
  endif()
  target_include_directories(mc_${name} ${scope} ${CMAKE_CURRENT_SOURCE_DIR}/lib)
  target_link_libraries(mc_${name} ${scope} Threads::Threads)
  foreach(dep ${ARGN})
    target_link_libraries(mc_${name} ${scope} mc_${dep})
  endforeach()
endfunction()

function(mc_link name)
  get_target_property(kind mc_${name} TYPE)
  if(kind STREQUAL "INTERFACE_LIBRARY")
    target_link_libraries(mc_${name} INTERFACE ${ARGN})
  else()
    target_link_libraries(mc_${name} PUBLIC ${ARGN})
  endif()
endfunction()

# A tool's main.cc names its version and commit by including the generated mc_version.h.
function(mc_tool name)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/tools/${name}/*.cc)
  if(NOT sources)
    return()
  endif()
  add_executable(${name} ${sources})
  mc_batches(${name} ${sources})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
  if(NOT TARGET mc_version)
    set(header ${CMAKE_BINARY_DIR}/generated/mc_version.h)
    add_custom_target(mc_version BYPRODUCTS ${header} COMMENT "" COMMAND ${CMAKE_COMMAND} -DOUTPUT=${header}
      -DSOURCE_DIR=${CMAKE_SOURCE_DIR} -DVERSION=${PROJECT_VERSION} -P ${CMAKE_SOURCE_DIR}/lib/version.cmake)
  endif()
  add_dependencies(${name} mc_version)
  target_include_directories(${name} PRIVATE ${CMAKE_BINARY_DIR}/generated)
  foreach(dep ${ARGN})
    target_link_libraries(${name} PRIVATE mc_${dep})
  endforeach()
  install(TARGETS ${name} RUNTIME DESTINATION bin)
endfunction()
