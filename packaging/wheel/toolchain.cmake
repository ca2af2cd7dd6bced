# For CMake: wheels are compiled by Zig's Clang for an old glibc. Symbols of the linker's own libraries stay inside, and nothing is left for
# debuggers, which the strip of a machine need not know how to take out.
set(CMAKE_C_COMPILER ${CMAKE_CURRENT_LIST_DIR}/zig-cc)
set(CMAKE_CXX_COMPILER ${CMAKE_CURRENT_LIST_DIR}/zig-c++)
set(CMAKE_AR ${CMAKE_CURRENT_LIST_DIR}/zig-ar CACHE FILEPATH "")
set(CMAKE_RANLIB ${CMAKE_CURRENT_LIST_DIR}/zig-ranlib CACHE FILEPATH "")
foreach(language C CXX)
  set(CMAKE_${language}_FLAGS_INIT "-ffunction-sections -fdata-sections")
endforeach()
foreach(kind EXE MODULE SHARED)
  set(CMAKE_${kind}_LINKER_FLAGS_INIT "-s -Wl,--gc-sections")
endforeach()
