# Writes OUTPUT with the state of the source tree SOURCE, or with SHA where that is no checkout; run at every build, touched only on
# change.
set(sha "")
set(dirty "false")
execute_process(COMMAND git -C ${SOURCE} rev-parse HEAD
  OUTPUT_VARIABLE sha OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
if(failed)
  set(sha "${SHA}")
else()
  execute_process(COMMAND git -C ${SOURCE} status --porcelain --untracked-files=no
    OUTPUT_VARIABLE changes ERROR_QUIET)
  if(changes)
    set(dirty "true")
  endif()
endif()
file(CONFIGURE OUTPUT ${OUTPUT} CONTENT [[#pragma once

// Generated at build time.
namespace dfa::bench {
inline constexpr const char* kGitSha = "@sha@";
inline constexpr bool kGitDirty = @dirty@;
inline constexpr const char* kBuildType = "@BUILD_TYPE@";
}  // namespace dfa::bench
]] @ONLY)
