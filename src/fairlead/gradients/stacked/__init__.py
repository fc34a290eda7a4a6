"""Gradients of many clients at once, each with its own weights, for convolutional models.

`torch.func.vmap` turns S clients' convolutions into one convolution with S groups, which the
libraries compute slowly. Here a model runs on stacked parameters, with kernels for that case
(`conv`, `norm`, `pool`); plain autograd then gives the gradients of all clients at once, as the gradient
of the sum of their losses.
"""

from fairlead.gradients.stacked.dense import in_tf32
from fairlead.gradients.stacked.lang import compiled_only
from fairlead.gradients.stacked.layers import Layer, stacked_model
from fairlead.gradients.stacked.norm import twice

__all__ = ["Layer", "compiled_only", "in_tf32", "stacked_model", "twice"]
