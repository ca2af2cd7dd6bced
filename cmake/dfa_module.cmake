# dfa_flags: the settings every target of ours shares. (-Wrestrict is wrong on g++ 12 string sums.
# No contraction: a multiplication and an addition fuse where the source says fma, so that rounding
# is the same with every compiler and every instruction set that has one.)
add_library(dfa_flags INTERFACE)
target_include_directories(dfa_flags INTERFACE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
target_compile_options(dfa_flags INTERFACE -Wall -Wextra -Wshadow -Wconversion -Wno-psabi -Wno-restrict
  -ffp-contract=off
  $<$<BOOL:${DFA_WERROR}>:-Werror>)
target_link_options(dfa_flags INTERFACE $<$<BOOL:${DFA_COVERAGE}>:--coverage>)
# Sanitized: all that is compiled, but for targets that have DFA_PLAIN, or DFA_ADDRESS_ALONE (dfa_plain and
# dfa_address_alone below).
if(DFA_SANITIZE)
  set(plain $<BOOL:$<TARGET_PROPERTY:DFA_PLAIN>>)
  target_compile_options(dfa_flags INTERFACE $<$<NOT:${plain}>:-fsanitize=${DFA_SANITIZE}> -fno-omit-frame-pointer
    $<$<NOT:${plain}>:-fno-sanitize-recover=all> $<$<BOOL:$<TARGET_PROPERTY:DFA_ADDRESS_ALONE>>:-fno-sanitize=undefined>)
  target_link_options(dfa_flags INTERFACE -fsanitize=${DFA_SANITIZE})
endif()

# Coverage counts src alone, and not atomically, which makes loops 70 times slower: tests that are
# counted run on one processor each, where threads seldom race for a count.
function(dfa_counted target)
  if(DFA_COVERAGE)
    target_compile_options(${target} PRIVATE --coverage -fprofile-update=single)
  endif()
endfunction()
# What computes is under the address sanitizer where all quick tests are, in the build that counts coverage: the
# full tier's is of what parses, stores, measures and controls, which this takes two minutes of a processor from.
function(dfa_plain target)
  if(DFA_SANITIZE STREQUAL "address,undefined" AND NOT DFA_COVERAGE)
    set_target_properties(${target} PROPERTIES DFA_PLAIN ON)
    target_compile_options(${target} PRIVATE -O2)
  endif()
endfunction()

# Checks of undefined behaviour are half of what compiling a test takes there, and are of src and cli: what calls
# them is watched for addresses alone, and whole in the build that counts coverage.
function(dfa_address_alone target)
  if(DFA_SANITIZE STREQUAL "address,undefined" AND NOT DFA_COVERAGE)
    set_target_properties(${target} PROPERTIES DFA_ADDRESS_ALONE ON)
  endif()
endfunction()

# Sanitized tests and commands compile for twice as long with optimisation as without.
function(dfa_unoptimised target)
  if(DFA_SANITIZE STREQUAL "address,undefined")
    target_compile_options(${target} PRIVATE -O0)
  endif()
endfunction()

# Most presets compile several sources of a target as one (CMAKE_UNITY_BUILD): what they include is
# read once. dfa_apart(SOURCE…): names in these files' unnamed namespaces are also in others'.
function(dfa_apart)
  set_source_files_properties(${ARGN} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()

# dfa_module(NAME SOURCES… [APART…] LINKS…): one folder of src/ is one target, dfa::NAME, and its link
# list is the list of folders it may include (tools/check_includes.py holds the same table).
function(dfa_module name)
  cmake_parse_arguments(arg "" "" "SOURCES;APART;LINKS" ${ARGN})
  list(APPEND arg_SOURCES ${arg_APART})
  if(arg_APART)
    dfa_apart(${arg_APART})
  endif()
  if(arg_SOURCES)
    add_library(dfa_${name} STATIC ${arg_SOURCES})
    dfa_counted(dfa_${name})
    target_link_libraries(dfa_${name} PUBLIC $<BUILD_INTERFACE:dfa_flags> ${arg_LINKS})
  else()
    add_library(dfa_${name} INTERFACE)
    target_link_libraries(dfa_${name} INTERFACE $<BUILD_INTERFACE:dfa_flags> ${arg_LINKS})
  endif()
  add_library(dfa::${name} ALIAS dfa_${name})
endfunction()
