"""Loads mlx and our extension, or says in one sentence what to install.

mlx.core comes first: it loads libmlx and registers mlx.core.array, which our functions take. Its version is checked
before the extension is opened, because an extension built for another one has undefined symbols.
"""

import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path

from . import _build_info

try:
    import mlx.core as mx
except ImportError as error:
    raise ImportError(
        f"mlx_tessl needs a working mlx, but importing mlx.core failed ({error}). On Linux run: "
        f"pip install 'mlx[cpu]=={_build_info.MLX_VERSION}'"
    ) from error

installed: str = mx.__version__  # type: ignore[attr-defined]  # mlx's stubs leave it out
if installed != _build_info.MLX_VERSION:
    raise ImportError(
        f"mlx_tessl {_build_info.VERSION} was built for mlx {_build_info.MLX_VERSION}, but mlx {installed} is "
        f"installed, and MLX's C++ ABI changes between releases. Run: pip install 'mlx=={_build_info.MLX_VERSION}'"
    )

from . import _ext

if not _ext.sees_mlx_arrays():
    raise ImportError(
        f"mlx_tessl was built with nanobind {_build_info.NANOBIND_VERSION}, whose ABI differs from that of the "
        f"installed mlx {installed}. Reinstall both: "
        f"pip install --force-reinstall 'mlx=={_build_info.MLX_VERSION}' mlx-tessl"
    )

if sys.platform == "linux" and (openblas := find_spec("scipy_openblas32")) is not None and openblas.origin is not None:
    _ext.set_blas_library(str(Path(openblas.origin).parent / "lib" / "libscipy_openblas.so"))

if (onednn := Path(sysconfig.get_path("data"), "lib", "libdnnl.so.3")).is_file():
    _ext.set_onednn_library(str(onednn))
