# mlx breaks its C++ ABI in patch releases, and mlx.core.array can be passed to our functions only when both modules
# were built with the same nanobind ABI. So the versions pinned in pyproject.toml are the only ones that work.
file(READ "${CMAKE_CURRENT_SOURCE_DIR}/pyproject.toml" pyproject)

function(require_pinned package found)
  string(REGEX MATCH "\"${package}==([0-9.]+)\"" _ "${pyproject}")
  set(pinned "${CMAKE_MATCH_1}")
  if(NOT found VERSION_EQUAL pinned)
    message(FATAL_ERROR
      "mlx_tessl must be built with ${package} ${pinned}, but found ${found}. Run: pip install ${package}==${pinned}")
  endif()
endfunction()

require_pinned(mlx "${MLX_VERSION}")
require_pinned(nanobind "${nanobind_VERSION}")
