"""The one table of operators: ATen overload -> how it is imported into the core.

A row is a function `(c, **arguments)` whose parameters carry the names of the ATen schema; defaults come from the
schema, so a row lists only what it reads. Tensors arrive as `Operand`, numbers as Python numbers or as `Dynamic` (a
number known only at run time). `c` is the importer's `Context`: `c.op(name, operands, **attributes)` adds an operation
of the core (src/ops/ops.def), `c.decline(reason, detail)` leaves the node to PyTorch. The importer casts each result to
the dtype that eager gave the node, so rows only choose the dtype they compute in.

Role of a row:
  COMPUTE  the reason to have a region
  HEAVY    matrix products and convolutions: welcome in a region, but not worth one alone
  CAST     a change of dtype: likewise
  PASSIVE  views and identities: inside a region for its own use, run by PyTorch for everybody else, so that aliasing
           stays eager's
"""

from . import contractions, losses, movement, norms, pointwise, reductions, windows  # noqa: F401  they fill the table
from .contractions import PRODUCTS
from .table import CAST, COMPUTE, FREE_VIEWS, HEAVY, PASSIVE, TABLE, Row

__all__ = ["CAST", "COMPUTE", "FREE_VIEWS", "HEAVY", "PASSIVE", "PRODUCTS", "TABLE", "Row"]
