"""An emulator that executes kernels for AMD GPUs on the CPU. It does not model timing."""
