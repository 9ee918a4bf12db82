# mc_lib, mc_link and mc_tool: how a folder becomes a target. A file's name picks its flags:
# *_avx2.cc, *_avx512.cc, *_avx512bf16.cc, *_avx512vnni.cc and *_avx512clmul.cc are compiled for that instruction set
# and must only be entered after a cpuid check.

function(mc_flags_by_name)
  foreach(file ${ARGN})
    if(file MATCHES "_avx[0-9a-z]+\\.cc$")
      set_source_files_properties(${file} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON SKIP_PRECOMPILE_HEADERS ON)
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

# mc_headers(name flags...): a target that precompiles the headers of the standard library. mc_precompiled(target name)
# lets a target use them: each of its batches then takes a second of CPU less. GCC refuses precompiled headers whose
# flags for debugging, position independence or the instruction set differ from those of the target, so files for an
# instruction set of their own do without. Clang does as well: its precompiled headers hold times, which a compiler
# cache takes for changes. <filesystem> is not among the headers: it has std::quoted, which the compiler would take for
# a function of ours with the same name.
option(MC_PRECOMPILED "Precompile the standard headers (GCC)" ON)
set(MC_STANDARD_HEADERS algorithm array atomic bit charconv chrono cmath condition_variable cstring deque functional
  limits map memory mutex numeric optional set span string string_view thread type_traits unordered_map
  utility variant vector)
function(mc_headers name)
  if(NOT MC_PRECOMPILED OR NOT CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    return()
  endif()
  set(source ${CMAKE_BINARY_DIR}/generated/${name}.cc)
  file(CONFIGURE OUTPUT ${source} CONTENT "")
  add_library(${name} OBJECT ${source})
  set_target_properties(${name} PROPERTIES UNITY_BUILD OFF)
  target_compile_options(${name} PRIVATE ${ARGN})
  list(TRANSFORM MC_STANDARD_HEADERS REPLACE "(.+)" "<\\1>" OUTPUT_VARIABLE headers)
  target_precompile_headers(${name} PRIVATE ${headers})
endfunction()
function(mc_precompiled target name)
  if(TARGET ${name})
    target_precompile_headers(${target} REUSE_FROM ${name})
  endif()
endfunction()

# mc_batches(target files...): the files compile in batches of even size, as few as there may be. A batch of 36 compiles
# its headers and their templates once, and takes three quarters of a minute at most.
set(MC_BATCH_MOST 36)
function(mc_batches target)
  list(LENGTH ARGN files)
  math(EXPR batches "(${files} + ${MC_BATCH_MOST} - 1) / ${MC_BATCH_MOST}")
  math(EXPR size "(${files} + ${batches} - 1) / ${batches}")
  set_target_properties(${target} PROPERTIES UNITY_BUILD_BATCH_SIZE ${size})
endfunction()

# A folder under lib/ with no .cc yet is an interface target, so that the diagram is always whole. Files that match
# MC_COLD_FILES compile with the options MC_COLD, in batches of their own.
function(mc_lib name)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/lib/${name}/*.cc
    ${CMAKE_CURRENT_SOURCE_DIR}/lib/${name}/*/*.cc)
  set(cold ${sources})
  list(FILTER cold INCLUDE REGEX "${MC_COLD_FILES}")
  list(FILTER sources EXCLUDE REGEX "${MC_COLD_FILES}")
  if(cold)
    add_library(mc_${name}_cold OBJECT ${cold})
    mc_batches(mc_${name}_cold ${cold})
    target_compile_options(mc_${name}_cold PRIVATE ${MC_COLD})
    mc_precompiled(mc_${name}_cold mc_headers_of_programs)
    target_include_directories(mc_${name}_cold PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/lib)
    list(APPEND sources $<TARGET_OBJECTS:mc_${name}_cold>)
  endif()
  if(sources)
    add_library(mc_${name} STATIC ${sources})
    mc_batches(mc_${name} ${sources})
    mc_precompiled(mc_${name} mc_headers_of_libraries)
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
  target_compile_options(${name} PRIVATE ${MC_COLD})
  mc_precompiled(${name} mc_headers_of_programs)
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
