"""The arithmetic of the layers, with separate forms for the CPU.

XLA's CPU backend is slow at grouped convolutions, at reductions over all axes but the channels and
at gradients of strided convolutions. The functions here choose a form per platform while the
program is lowered (`jax.lax.platform_dependent`), so that a program compiled on a CPU machine for a
TPU gets the TPU's form. The choice is made inside custom derivatives: autodiff of the choice would
keep the residuals of both forms.
"""
