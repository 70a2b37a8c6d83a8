# Which Metal library a shader family belongs to, by the end of its name, and how that library is compiled:
#   <family>_tensorops27.metal  fp8 and fp4 scale planes
#   <family>_tensorops.metal    matmul2d
#   <family>.metal              every Apple silicon Mac

set(metal_standard_portable metal3.1)
set(metal_standard_tensorops metal4.0)
set(metal_standard_tensorops27 metal4.1)

set(metal_minimum_portable 14.0)
set(metal_minimum_tensorops 26.2)
set(metal_minimum_tensorops27 27.0)

function(metal_capability shader result)
  if(shader MATCHES "_(tensorops(27)?)\\.metal$")
    set(${result} ${CMAKE_MATCH_1} PARENT_SCOPE)
  else()
    set(${result} portable PARENT_SCOPE)
  endif()
endfunction()

# The compiler's flags for a library that loads on macOS `minimum` and later. The minimum chooses how matmul2d hands its
# operands to the system: under one below 26.2 the same kernels compile, run, and compute garbage from row 8 on (MLX
# issue 3622). So it is always stated, whatever the deployment target of the host code, and never lowered.
function(metal_flags capability minimum result)
  if(minimum VERSION_LESS metal_minimum_${capability})
    message(FATAL_ERROR
      "mlx_tessl_${capability}.metallib must be built for macOS ${metal_minimum_${capability}} or later, not ${minimum}: "
      "under an older minimum its kernels compute wrong results. "
      "Unset MLX_TESSL_METAL_MINIMUM_${capability}; the host code may have a lower deployment target.")
  endif()
  set(${result}
    -x metal -std=${metal_standard_${capability}} -mmacosx-version-min=${minimum} -fno-fast-math -Wall -Wextra
    PARENT_SCOPE)
endfunction()
