# The library `dfa`: all folders below dfa::attention in one shared library that exports only what
# include/dfa/ marks DFA_API. Installed with headers, CMake package, pkg-config file and the program.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# Folder targets with objects that `target` needs, itself included.
function(dfa_folders_below target result)
  set(folders ${${result}})
  get_target_property(aliased ${target} ALIASED_TARGET)
  if(aliased)
    set(target ${aliased})
  endif()
  if(NOT target IN_LIST folders)
    list(APPEND folders ${target})
    get_target_property(links ${target} INTERFACE_LINK_LIBRARIES)
    foreach(link ${links})
      if(link MATCHES "^dfa::")
        dfa_folders_below(${link} folders)
      endif()
    endforeach()
  endif()
  set(${result} ${folders} PARENT_SCOPE)
endfunction()

set(folders "")
dfa_folders_below(dfa::attention folders)
set(objects "")
foreach(folder ${folders})
  get_target_property(type ${folder} TYPE)
  if(type STREQUAL "STATIC_LIBRARY")
    list(APPEND objects $<TARGET_OBJECTS:${folder}>)
  endif()
endforeach()

add_library(dfa SHARED ${objects})
add_library(dfa::dfa ALIAS dfa)
target_include_directories(dfa INTERFACE
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
target_compile_features(dfa INTERFACE cxx_std_20)
target_link_libraries(dfa PRIVATE $<BUILD_INTERFACE:dfa::attention>)
if(DFA_SANITIZE)  # the sanitizer's runtime comes from the program, which must be linked with it
  target_link_options(dfa INTERFACE $<BUILD_INTERFACE:-fsanitize=${DFA_SANITIZE}>)
else()
  target_link_options(dfa PRIVATE LINKER:--no-undefined)
endif()
set_target_properties(dfa PROPERTIES
  LINKER_LANGUAGE CXX VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/dfa)
install(TARGETS dfa EXPORT dfaTargets)
install(TARGETS dfa_cli)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/dfa DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT dfaTargets NAMESPACE dfa:: DESTINATION ${package_dir})
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/dfaConfig.cmake.in dfaConfig.cmake
  INSTALL_DESTINATION ${package_dir} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(dfaConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/dfaConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/dfaConfigVersion.cmake
        DESTINATION ${package_dir})

# The .pc file finds its prefix from where it lies, so that the tree can be moved.
set(pkgconfig_dir ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
file(RELATIVE_PATH pc_to_prefix /prefix/${pkgconfig_dir} /prefix)
configure_file(${CMAKE_CURRENT_LIST_DIR}/dfa.pc.in dfa.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/dfa.pc DESTINATION ${pkgconfig_dir})

if(PROJECT_IS_TOP_LEVEL)
  set(CPACK_GENERATOR DEB)
  set(CPACK_PACKAGE_CONTACT "the dfa maintainers")
  set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
  set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
  set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
  set(CPACK_STRIP_FILES ON)
  include(CPack)
endif()
