"""Runs what Apple's compiler made of MLX's kernels (AIR, a dialect of LLVM's bitcode) on the emulator's runtime."""
