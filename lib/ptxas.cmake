# Compiles one PTX file with ptxas and refuses what it repaired or slowed down: spilled registers, and its messages
# C7500 to C7599 (serialised wgmma, injected waits and fences, ignored setmaxnreg). Its report stays beside the PTX.
execute_process(COMMAND ${PTXAS} -v -arch=${ARCH} ${PTX} -o ${PTX}.cubin OUTPUT_VARIABLE said ERROR_VARIABLE said
  RESULT_VARIABLE failed)
file(WRITE ${PTX}.report "${said}")
string(REGEX MATCH "[1-9][0-9]* bytes spill" spill "${said}")
string(REGEX MATCH "[^\n]*C75[0-9][0-9][^\n]*" repaired "${said}")
if(failed OR spill OR repaired)
  file(REMOVE ${PTX})
  message(FATAL_ERROR "ptxas refuses or repairs ${PTX}: ${spill} ${repaired}\n${said}")
endif()
