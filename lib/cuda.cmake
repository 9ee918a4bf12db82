# The kernels of lib/gpu/kernels. The host compiler compiles all of them for the emulator, in every build. With nvcc,
# *_sm80.cu and *_sm90a.cu also become PTX for that architecture, which the build puts into mc_gpu as text. ptxas
# compiles them as well, for what only it can tell: registers, which lib/gpu/kernels/resources.txt bounds, spills, and
# whether it had to repair or serialise anything (C75xx). Without nvcc the table of PTX is empty.
set(MC_CUDA auto CACHE STRING "auto, on or off: compile GPU kernels with nvcc")
set_property(CACHE MC_CUDA PROPERTY STRINGS auto on off)
if(NOT MC_CUDA STREQUAL "off")
  find_program(MC_NVCC nvcc HINTS /usr/local/cuda/bin)
  get_filename_component(MC_CUDA_BIN "${MC_NVCC}" DIRECTORY)
  find_program(MC_PTXAS ptxas HINTS "${MC_CUDA_BIN}")
endif()
if(MC_CUDA STREQUAL "on" AND NOT (MC_NVCC AND MC_PTXAS))
  message(FATAL_ERROR "MC_CUDA=on, and neither PATH nor /usr/local/cuda/bin has nvcc and ptxas: "
    "install the CUDA toolkit 13, or configure with -DMC_CUDA=off")
endif()
if(MC_NVCC AND MC_PTXAS AND NOT MC_CUDA STREQUAL "off")
  message(STATUS "GPU kernels: compiled by ${MC_NVCC}")
else()
  message(STATUS "GPU kernels: for the emulator alone, nvcc was not found (MC_CUDA=${MC_CUDA})")
endif()

# mc_kernels(library): adds the kernels, compiled by the host compiler, and the table of kernel_texts()
# (gpu/kernels/kernels.h) to the library.
function(mc_kernels library)
  file(GLOB kernels CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/lib/gpu/kernels/*.cu)
  target_sources(${library} PRIVATE ${kernels})
  set_source_files_properties(${kernels} PROPERTIES LANGUAGE CXX SKIP_UNITY_BUILD_INCLUSION ON
    COMPILE_OPTIONS "-Wno-unknown-pragmas")
  set(folder ${CMAKE_BINARY_DIR}/kernels)
  file(MAKE_DIRECTORY ${folder})
  set(ptx_files)
  set(checked)
  if(MC_NVCC AND MC_PTXAS AND NOT MC_CUDA STREQUAL "off")
    # The kernels of lib/gpu/ptx are compiled to see that the assembler takes them. No library links them.
    file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/lib/gpu/kernels/*_sm*.cu
      ${CMAKE_CURRENT_SOURCE_DIR}/lib/gpu/ptx/*_sm*.cu)
    set(resources ${CMAKE_CURRENT_SOURCE_DIR}/lib/gpu/kernels/resources.txt)
    foreach(source ${sources})
      get_filename_component(name ${source} NAME_WE)
      set(table)
      if(source MATCHES "lib/gpu/kernels/")
        set(table -DRESOURCES=${resources})
      endif()
      string(REGEX REPLACE "^.*_sm" "" arch ${name})
      set(ptx ${folder}/${name}.ptx)
      add_custom_command(OUTPUT ${ptx} DEPFILE ${ptx}.d
        DEPENDS ${source} ${CMAKE_CURRENT_SOURCE_DIR}/lib/ptxas.cmake ${resources}
        COMMAND ${MC_NVCC} -std=c++20 -O3 --expt-relaxed-constexpr -lineinfo -arch=compute_${arch} -ptx
          -I${CMAKE_CURRENT_SOURCE_DIR}/lib -MD -MF ${ptx}.d -o ${ptx} ${source}
        COMMAND ${CMAKE_COMMAND} -DPTXAS=${MC_PTXAS} -DARCH=sm_${arch} -DPTX=${ptx} ${table}
          -P ${CMAKE_CURRENT_SOURCE_DIR}/lib/ptxas.cmake
        COMMENT "Building PTX ${name}" VERBATIM)
      list(APPEND checked ${ptx})
      if(source MATCHES "lib/gpu/kernels/")
        list(APPEND ptx_files ${ptx})
      endif()
    endforeach()
  endif()
  set(table ${folder}/kernel_texts.cc)
  set(names "")
  foreach(file ${ptx_files})
    get_filename_component(name ${file} NAME_WE)
    list(APPEND names ${name})
  endforeach()
  string(JOIN "," names ${names})
  add_custom_command(OUTPUT ${table} DEPENDS ${checked} ${CMAKE_CURRENT_SOURCE_DIR}/lib/kernel_texts.cmake
    COMMAND ${CMAKE_COMMAND} -DOUTPUT=${table} -DFOLDER=${folder} -DNAMES=${names}
      -P ${CMAKE_CURRENT_SOURCE_DIR}/lib/kernel_texts.cmake
    COMMENT "" VERBATIM)
  set_source_files_properties(${table} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  target_sources(${library} PRIVATE ${table})
endfunction()
