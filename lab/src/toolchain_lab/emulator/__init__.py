"""An emulator of AMD GPUs, which computes the results of code objects on the CPU without modelling time."""
