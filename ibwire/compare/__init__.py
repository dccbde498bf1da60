"""Two captures of one path: what happened to each frame between the two points.

`compare` pairs the frames of both captures and returns a `Between`: for each direction the
frames that were lost, damaged, duplicated, reordered or marked. The names below are public.
"""

from ibwire.compare.comparison import Between, DirectionBetween, compare

__all__ = ["Between", "DirectionBetween", "compare"]
