# The built module must see mlx.core.array, or every later call would fail with a TypeError.
if(NOT CMAKE_CROSSCOMPILING)
  add_custom_command(
    TARGET _ext POST_BUILD
    COMMAND "${Python_EXECUTABLE}" -c
      "import mlx.core, _ext, sys; sys.exit(0 if _ext.sees_mlx_arrays() else 'mlx_tessl was built with nanobind ${nanobind_VERSION}, whose ABI differs from that of mlx ${MLX_VERSION}')"
    WORKING_DIRECTORY $<TARGET_FILE_DIR:_ext>
    VERBATIM)
endif()
