"""The arithmetic of the layers, with a lowering of its own for the CPU.

XLA's CPU backend is slow at grouped convolutions, at reductions over all axes but the channels and
at gradients of strided convolutions. The functions here choose a form per platform while the
program is lowered (`jax.lax.platform_dependent`), so that a program compiled on a CPU machine for a
TPU gets the TPU's form. The choice is made inside custom derivatives: if autodiff differentiated
it, the residuals of both forms would be kept.
"""
