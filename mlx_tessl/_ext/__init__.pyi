"""C++ primitives of mlx_tessl."""

from collections.abc import Callable, Sequence

import mlx.core

from mlx_tessl._ext import plan as plan


def loaded_mlx_version() -> str:
    """The version of the libmlx in this process."""

def sees_mlx_arrays() -> bool:
    """
    Whether mlx.core.array is known here: false when mlx.core is not imported or uses another nanobind ABI.
    """

def attention(q: mlx.core.array, k: mlx.core.array, v: mlx.core.array, *, scale: float, mask: str | mlx.core.array | None = None, window: int | tuple[int | None, int | None] | None = None, lengths: mlx.core.array | None = None, starts: mlx.core.array | None = None, sinks: mlx.core.array | None = None, softcap: float | None = None, prefix: tuple[mlx.core.array, mlx.core.array] | None = None, precision: str | None = None, stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> mlx.core.array: ...

def set_blas_library(path: str) -> None:
    """Where OpenBLAS is; it is opened at the first product."""

def blas_description() -> str:
    """What the BLAS library says of itself. Opens it."""

def set_onednn_library(path: str) -> None:
    """Where oneDNN is; it is opened when it may be used."""

def onednn_use() -> dict:
    """
    For each type of operands: `used`, whether products go through oneDNN, and the `reason`. Opens it.
    """

def cpu_threads() -> int:
    """Threads of the CPU backend."""

def cpu_instruction_set() -> str:
    """The vector kernels chosen for this CPU."""

def metal_compiled() -> bool:
    """Whether this build has the Metal backend."""

def device_profile() -> dict:
    """The GPU as planning sees it; only where metal_compiled()."""

def tensorops_reason() -> str:
    """
    Why that GPU has, or has not, the TensorOps kernels; only where metal_compiled().
    """

def named_profile(gpu: str, macos: str) -> dict:
    """A named GPU as planning sees it."""

def push_emulation(gpu: str, macos: str, *, check: bool, order: str, seed: int, ulp_noise: float) -> None: ...

def pop_emulation() -> None: ...

def gated_delta(q: mlx.core.array, k: mlx.core.array, v: mlx.core.array, g: mlx.core.array | None = None, beta: mlx.core.array | None = None, state: mlx.core.array | None = None, *, gates: tuple[mlx.core.array, mlx.core.array, mlx.core.array, mlx.core.array] | None = None, starts: mlx.core.array | None = None, lengths: mlx.core.array | None = None, normalize_qk: bool = False, precision: str | None = None, stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> tuple[mlx.core.array, mlx.core.array]: ...

def causal_conv1d(x: mlx.core.array, weight: mlx.core.array, state: mlx.core.array | None = None, *, activation: str | None = 'silu', starts: mlx.core.array | None = None, lengths: mlx.core.array | None = None, stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> tuple[mlx.core.array, mlx.core.array]: ...

def sigmoid_gate(x: mlx.core.array, gate: mlx.core.array, *, stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> mlx.core.array: ...

def swiglu(gate: mlx.core.array, up: mlx.core.array, *, stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> mlx.core.array: ...

def geglu(gate: mlx.core.array, up: mlx.core.array, *, approximate: str = 'tanh', stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> mlx.core.array: ...

def kv_store(cache: mlx.core.array, new: mlx.core.array, position: mlx.core.array, *, stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> mlx.core.array: ...

def matmul(a: mlx.core.array, b: mlx.core.array, c: mlx.core.array | None = None, *, alpha: float = 1.0, beta: float = 0.0, bias: mlx.core.array | None = None, activation: str | None = None, precision: str | None = None, batch_invariant: bool = False, stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> mlx.core.array: ...

def linear(x: mlx.core.array, weight: mlx.core.array, bias: mlx.core.array | None = None, *, activation: str | None = None, residual: mlx.core.array | None = None, precision: str | None = None, batch_invariant: bool = False, stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> mlx.core.array: ...

def rms_norm(x: mlx.core.array, weight: mlx.core.array | None, eps: float, *, residual: mlx.core.array | None = None, weight_offset: float = 0.0, stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> tuple[mlx.core.array, mlx.core.array | None]: ...

def layer_norm(x: mlx.core.array, weight: mlx.core.array | None, bias: mlx.core.array | None, eps: float, *, residual: mlx.core.array | None = None, stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> tuple[mlx.core.array, mlx.core.array | None]: ...

def gated_rms_norm(x: mlx.core.array, gate: mlx.core.array, weight: mlx.core.array, eps: float, *, stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> mlx.core.array: ...

def int8_matmul(a: mlx.core.array, b: mlx.core.array, *, scale_a: mlx.core.array | None = None, scale_b: mlx.core.array | None = None, bias: mlx.core.array | None = None, activation: str | None = None, dtype: mlx.core.Dtype | None = None, stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> mlx.core.array: ...

def quantized_embedding(ids: mlx.core.array, w: mlx.core.array, scales: mlx.core.array, biases: mlx.core.array | None = None, *, group_size: int | None = None, bits: int | None = None, mode: str = 'affine', stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> mlx.core.array: ...

def quantized_matmul(x: mlx.core.array, w: mlx.core.array, scales: mlx.core.array, biases: mlx.core.array | None = None, *, transpose: bool = True, group_size: int | None = None, bits: int | None = None, mode: str = 'affine', bias: mlx.core.array | None = None, activation: str | None = None, precision: str | None = None, stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> mlx.core.array: ...

def row_sum(x: mlx.core.array, *, stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> mlx.core.array: ...

def row_max(x: mlx.core.array, *, stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> mlx.core.array: ...

def logsumexp(x: mlx.core.array, *, stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> mlx.core.array: ...

def softmax(x: mlx.core.array, axis: int = -1, *, stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> mlx.core.array: ...

def l2_normalize(x: mlx.core.array, eps: float, *, stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> mlx.core.array: ...

def rope(x: mlx.core.array, positions: mlx.core.array, inv_freq: mlx.core.array, *, rotary_dim: int | None = None, interleaved: bool = False, stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> mlx.core.array: ...

def qk_norm_rope(q: mlx.core.array, k: mlx.core.array, q_weight: mlx.core.array, k_weight: mlx.core.array, positions: mlx.core.array, inv_freq: mlx.core.array, eps: float, *, weight_offset: float = 0.0, rotary_dim: int | None = None, stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> tuple[mlx.core.array, mlx.core.array]: ...

def argmax(logits: mlx.core.array, softcap: float | None = None, *, stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> mlx.core.array: ...

def sample(logits: mlx.core.array, noise: mlx.core.array, *, temperature: float = 1.0, top_k: int | None = None, top_p: float | None = None, softcap: float | None = None, stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> mlx.core.array: ...

def segment_mean(x: mlx.core.array, starts: mlx.core.array, lengths: mlx.core.array, *, stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> mlx.core.array: ...

def flatten_shader(kernels: str, family: str) -> tuple[str, str]:
    """
    A shader family as one text without includes of ours, and the hash of that text.
    """

def check_product(product: Callable[[Sequence[float], Sequence[float]], Sequence[float]], rows: int = 16) -> tuple[bool, str]:
    """
    Whether a product of [rows, 64] by [64, 32], row-contiguous float32, passes the self-check, and why or why not.
    """

def tensorops_checks(gpu: str, macos: str) -> list:
    """
    The products by which a device's TensorOps kernels earn trust: name, rows, plan, inputs, shape and dtype of each output, and whether a kernel of the library in question is in the plan. The product ends the first output.
    """

def sparse_max_pool(hidden: mlx.core.array, weight: mlx.core.array, bias: mlx.core.array | None = None, lengths: mlx.core.array | None = None, *, activation: str = 'log1p_relu', pooling: str = 'max', precision: str | None = None, stream: mlx.core.Stream | mlx.core.ThreadLocalStream | mlx.core.Device | mlx.core.DeviceType | None = None) -> mlx.core.array: ...

class LaunchRecord:
    """One dispatch of a traced op."""

    @property
    def kernel(self) -> str: ...

    @property
    def family(self) -> str: ...

    @property
    def capability(self) -> str: ...

    @property
    def threadgroup_memory(self) -> int: ...

    @property
    def constants(self) -> dict: ...

    @property
    def grid(self) -> tuple[int, int, int]: ...

    @property
    def group(self) -> tuple[int, int, int]: ...

class TraceEntry:
    """One evaluation of one op."""

    @property
    def op(self) -> str: ...

    @property
    def backend(self) -> str: ...

    @property
    def launches(self) -> list[LaunchRecord]: ...

    def __repr__(self) -> str: ...

def start_trace() -> None: ...

def take_trace() -> list[TraceEntry]: ...
