# lmdbio_split_debug(target destination): debug symbols in a file of their own, which debuggers find in .debug beside the
# stripped one.
function(lmdbio_split_debug target destination)
  if(NOT LMDBIO_SPLIT_DEBUG)
    return()
  endif()
  set(file $<TARGET_FILE:${target}>)
  add_custom_command(TARGET ${target} POST_BUILD
    COMMAND ${CMAKE_COMMAND} -E make_directory $<TARGET_FILE_DIR:${target}>/.debug
    COMMAND ${CMAKE_OBJCOPY} --only-keep-debug ${file} $<TARGET_FILE_DIR:${target}>/.debug/$<TARGET_FILE_NAME:${target}>.debug
    COMMAND ${CMAKE_STRIP} --strip-unneeded ${file}
    COMMAND ${CMAKE_OBJCOPY} --add-gnu-debuglink=$<TARGET_FILE_DIR:${target}>/.debug/$<TARGET_FILE_NAME:${target}>.debug ${file}
    VERBATIM)
  install(FILES $<TARGET_FILE_DIR:${target}>/.debug/$<TARGET_FILE_NAME:${target}>.debug
    DESTINATION ${destination}/.debug COMPONENT debug)
endfunction()
