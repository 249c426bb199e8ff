"""An emulator for AMD GPUs, which executes code objects on the CPU and does not model timing."""
