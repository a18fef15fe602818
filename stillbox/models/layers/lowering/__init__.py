"""The arithmetic of the layers, with separate forms for the CPU.

XLA's CPU backend is slow at grouped convolutions, at reductions over all axes but the channels and
at gradients of strided convolutions. The functions here take the form of the platform that a
program is traced for, which need not be this machine's. If that is not known yet, JAX chooses while
it lowers the program (`jax.lax.platform_dependent`). The choice is made inside custom derivatives:
autodiff of the choice would keep the residuals of both forms.
"""
