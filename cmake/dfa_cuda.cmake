# DFA_CUDA=AUTO|ON|OFF: is the GPU backend built? It needs one file of CUDA, cuda.h, and at run time
# nothing but what it loads itself. Sets DFA_HAVE_CUDA and, where there is one, DFA_CUDA_INCLUDE.
set(DFA_CUDA AUTO CACHE STRING "GPU backend: AUTO (when cuda.h is found), ON or OFF")
set_property(CACHE DFA_CUDA PROPERTY STRINGS AUTO ON OFF)

set(DFA_HAVE_CUDA OFF)
if(DFA_CUDA)  # AUTO and ON
  set(packages lib/python3*/site-packages/nvidia/*/include)
  # Of the environments that ./run makes, the one in use: another may be made anew at any time.
  file(GLOB python_packages $ENV{VIRTUAL_ENV}/${packages})
  file(GLOB others ${PROJECT_SOURCE_DIR}/.venv/*/${packages})
  list(APPEND python_packages ${others})
  if(SKBUILD)  # a wheel is being built: its build environment has cuda.h too
    execute_process(COMMAND ${Python_EXECUTABLE} -c
      "import glob, sys; print(';'.join(f for p in sys.path for f in glob.glob(p + '/nvidia/*/include')))"
      OUTPUT_VARIABLE build_environment OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
    list(APPEND python_packages ${build_environment})
  endif()
  find_path(DFA_CUDA_INCLUDE cuda.h DOC "folder of cuda.h" NO_DEFAULT_PATH
    PATHS ${python_packages} $ENV{CUDA_HOME}/include /usr/local/cuda/include)
  set(problem "cuda.h is in none of VIRTUAL_ENV, .venv, CUDA_HOME, /usr/local/cuda; DFA_CUDA_INCLUDE names its folder")
  if(EXISTS "${DFA_CUDA_INCLUDE}/cuda.h")
    file(STRINGS ${DFA_CUDA_INCLUDE}/cuda.h version REGEX "^#define CUDA_VERSION +[0-9]+")
    string(REGEX MATCH "[0-9]+" version "${version}")
    if(version GREATER_EQUAL 12000)
      set(DFA_HAVE_CUDA ON)
    else()
      set(problem "${DFA_CUDA_INCLUDE}/cuda.h is of CUDA version '${version}'; 12000 or later is needed")
    endif()
  elseif(DFA_CUDA_INCLUDE)
    set(problem "DFA_CUDA_INCLUDE is '${DFA_CUDA_INCLUDE}', which has no cuda.h")
  endif()
endif()

if(DFA_HAVE_CUDA)
  message(STATUS "GPU backend: built with ${DFA_CUDA_INCLUDE}/cuda.h")
elseif(DFA_CUDA STREQUAL "AUTO")
  message(STATUS "GPU backend: not built: ${problem}")
elseif(DFA_CUDA)
  message(FATAL_ERROR "DFA_CUDA is ${DFA_CUDA}, but ${problem}")
else()
  message(STATUS "GPU backend: not built: DFA_CUDA is ${DFA_CUDA}")
endif()
